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

// Unscaling, the check for inf and NaN, and clipping, in torch's order and without a host read. Where the norm is known
// it says whether all gradients are finite, and dividing by scale and clip factor is left to the optimizer's kernel;
// clipping by value changes the gradients in place. `loss_scale`: float32 [1], or undefined.
GradientCheck check_gradients(const std::vector<at::Tensor>& gradients, const std::optional<ClipGrad>& clip,
                              const at::Tensor& loss_scale, bool check_finite);

// The 2-norm of the unscaled gradients.
at::Tensor norm_of_gradients(const std::vector<at::Tensor>& gradients, const at::Tensor& loss_scale);
// Clips the gradients of these parameters. Throws ConfigError for a pattern of `exclude` that fits none of them.
ClipWith adaptive_clipping(const ClipAdaptive& clip, const NamedTensors& parameters);

}  // namespace duet
