#pragma once

#include "optim/optimizers/kernel_call.h"

// ATen's fused optimizer kernels with their numbers as tensors: a captured step then sees every new value. On the CPU
// each is one operator, duet::fused_*_, that reads the tensors when it runs; on CUDA ATen's own, whose numbers but lr
// are frozen by a capture and therefore belong to its key.

namespace duet {

// State: exp_avg, exp_avg_sq and, with amsgrad, max_exp_avg_sq.
void fused_adam(const KernelCall& call, bool amsgrad, bool maximize);
void fused_adamw(const KernelCall& call, bool amsgrad, bool maximize);
// State: momentum_buffer, or none for momentum 0.
void fused_sgd(const KernelCall& call, bool nesterov, bool maximize);
// State: sum.
void fused_adagrad(const KernelCall& call, bool maximize);

// Where not `held`, values[i] = table[applied - base][i]; float64 on the CPU, as one operator, duet::look_up_.
void look_up_on_cpu(at::Tensor& values, const at::Tensor& held, const at::Tensor& table, const at::Tensor& base,
                    const at::Tensor& applied);

}  // namespace duet
