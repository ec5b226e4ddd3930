#pragma once

#include <ATen/core/Tensor.h>

namespace duet {

// The tensor without the dimensions that an expand() repeats. A copy into it fills the whole, which would refuse one.
inline at::Tensor each_element_once(at::Tensor tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

}  // namespace duet
