#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>

namespace duet {

// How a tensor lies in its memory.
struct TensorLayout {
  explicit TensorLayout(const at::Tensor& tensor)
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

}  // namespace duet
