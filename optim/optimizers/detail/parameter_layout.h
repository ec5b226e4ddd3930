#pragma once

#include <string>
#include <ATen/core/Tensor.h>

// Fused kernels walk the memory of a parameter, its gradient and its state side by side, and ask for no sizes: all must
// share one dense layout.

namespace duet {

// Throw ConfigError for a parameter that no kernel can step, and for a gradient that is none of `parameter`'s.
void check_parameter(const std::string& name, const at::Tensor& parameter);
void check_gradient(const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient);

// Autograd gives gradients in the layout of their parameters. One that a user or a hook has set in another is replaced
// by a copy in that layout, so that there is one gradient, which whoever clips, steps or looks sees.
void lay_out_gradient(const at::Tensor& parameter);

}  // namespace duet
