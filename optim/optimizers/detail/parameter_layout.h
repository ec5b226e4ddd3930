#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>

// Fused kernels walk the memory of a parameter, its gradient and its state side by side, and ask for no sizes: all must
// share one dense layout.

namespace duet {

// How a tensor lies in memory.
struct ParameterLayout {
  explicit ParameterLayout(const at::Tensor& tensor)
      : dtype(tensor.scalar_type()), sizes(tensor.sizes().vec()), strides(tensor.strides().vec()) {}
  bool has_shape_of(const at::Tensor& tensor) const {
    return tensor.scalar_type() == dtype && tensor.sizes() == at::IntArrayRef(sizes);
  }
  bool is_of(const at::Tensor& tensor) const {
    return has_shape_of(tensor) && tensor.strides() == at::IntArrayRef(strides);
  }

  at::ScalarType dtype;
  std::vector<int64_t> sizes, strides;
};

// Throw ConfigError for a parameter that no kernel can step, and for a gradient that is none of `parameter`'s.
void check_parameter(const std::string& name, const at::Tensor& parameter);
void check_gradient(const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient);

// The gradient in the layout of its parameter; autograd gives it so, a user's own gradient may differ.
at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& gradient);

}  // namespace duet
