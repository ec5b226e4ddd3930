#pragma once

#include <string>
#include <ATen/core/Tensor.h>

// Fused kernels walk the memory of a parameter, its gradient and its state side by side, and ask for no sizes: all must
// share one dense layout.

namespace duet {

// Throw ConfigError for a parameter that no kernel can step, and for a gradient that is none of `parameter`'s.
void check_parameter(const std::string& name, const at::Tensor& parameter);
void check_gradient(const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient);

// The gradient in the layout of its parameter; autograd gives it so, a user's own gradient may differ.
at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& gradient);

}  // namespace duet
