#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "optim/optimizers/optimizer_kind.h"

namespace duet::python {

// How an optimizer of torch.optim is set; of those below each needs some.
struct TorchFlags {
  std::string type;  // "SGD", "Adam", "AdamW", "RMSprop", "Adagrad"
  bool fused = false;
  bool amsgrad = false, maximize = false, nesterov = false, centered = false;
  bool has_momentum = false;  // in some group
};

// The step of torch.optim's optimizer of that type on the CPU, op for op, with every number read when it runs, so that
// a replay follows param_groups. Its state has the names of torch.optim's; "torch_step" is torch's "step" of each
// parameter, "started" whether torch has a momentum_buffer yet.
// `types`: a number per group, on the CPU, whose digits are the types of the group's hyper-parameters
// (TorchNumber::Type).
OptimizerKind torch_kind(const TorchFlags& flags, const std::vector<at::Tensor>& types);

// The hyper-parameters that its groups have, by torch's names; betas are beta1 and beta2.
std::vector<std::string> torch_numbers(const TorchFlags& flags);

}  // namespace duet::python
