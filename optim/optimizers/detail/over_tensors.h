#pragma once

#include "optim/optimizers/optimizer_kind.h"

// The steps of fused kinds over tensors, with torch.optim's single-tensor arithmetic.
namespace duet::over_tensors {

void sgd(const KernelCall& call, const OptimizerOptions& options);
void adam(const KernelCall& call, const OptimizerOptions& options);
void adamw(const KernelCall& call, const OptimizerOptions& options);
void adagrad(const KernelCall& call, const OptimizerOptions& options);

}  // namespace duet::over_tensors
