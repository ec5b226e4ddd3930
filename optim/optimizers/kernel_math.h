#pragma once

#include <functional>
#include <vector>
#include "kernel_call.h"

// The steps that optimizers over tensors have in common. Each rounds as torch.optim's single-tensor code does, with its
// Python numbers as 0-dim tensors: `x.add(y, alpha=a)` becomes addcmul(x, y, a), which ATen computes alike.
namespace duet::kernel_math {

using Tensors = std::vector<at::Tensor>;

// Whether the parameters are float16 or bfloat16.
bool is_narrow(const KernelCall& call);
// Steps float32 copies of the call's tensors and writes them back, rounded once. In bfloat16 0.999 is 1: the arithmetic
// of a moving average would stand still there.
void step_in_float32(const KernelCall& call, const std::function<void(const KernelCall& wide)>& step);

// A hyper-parameter in float64, for arithmetic between numbers.
at::Tensor number64(const KernelCall& call, const char* name);
// `number` in the dtype of `tensors`: a 0-dim tensor of another dtype would change that of a 0-dim parameter.
at::Tensor cast_like(const at::Tensor& number, const Tensors& tensors);

// The gradient to descend along: negated if `maximize`, with weight_decay * parameter added if `l2_decay`.
Tensors descent_gradients(const KernelCall& call, bool maximize, bool l2_decay);
// parameter *= 1 - lr * weight_decay
void decay_parameters(const KernelCall& call);

// self += factor * other
void add_scaled_(const Tensors& self, const Tensors& other, const at::Tensor& factor);
// self += factor * numerator / denominator
void add_quotient_(const Tensors& self, const Tensors& numerator, const Tensors& denominator, const at::Tensor& factor);
// self += weight * (end - self)
void lerp_(const Tensors& self, const Tensors& end, const at::Tensor& weight);
// average = beta * average + (1 - beta) * gradient^2
void average_squares_(const Tensors& averages, const Tensors& gradients, const at::Tensor& beta);

// 1 - beta^step
at::Tensor bias_correction(const at::Tensor& beta, const at::Tensor& step);

}  // namespace duet::kernel_math
