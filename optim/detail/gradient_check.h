#pragma once

#include <optional>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/batch.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// What an optimizer needs to know of the gradients of a step: see Optimizer::step. All float32 on the device, undefined
// where nothing was asked for.
struct GradientCheck {
  at::Tensor grad_scale;  // [1]: what is left to divide the gradients by
  at::Tensor found_inf;   // [1]: 1 if one of them is not finite, else 0
  at::Tensor norm;        // 0-dim: global norm of the unscaled gradients, before clipping
};

struct GradientRules {
  std::optional<ClipGrad> clip{};
  bool checks_finite = false;
  bool logs_norm = false;  // without norm clipping too: the 2-norm
};

// With the parameters that they belong to.
struct StepGradients {
  NamedTensors parameters;
  std::vector<at::Tensor> values;
};

// Unscaling, the check for inf and NaN, and clipping, in torch's order and without a host read. Where the norm is known
// it says whether all gradients are finite, and dividing by scale and clip factor is left to the optimizer's kernel;
// other clipping changes the gradients in place. `loss_scale`: float32 [1], or undefined.
GradientCheck check_gradients(const StepGradients& gradients, const GradientRules& rules, const at::Tensor& loss_scale);

}  // namespace duet
