#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>

namespace duet {

// Of what makes a backward pass treat a leaf in another way: whether it requires a gradient, and which functions
// register_hook has put on that. A hook in the place of another one gives another number. Those of Python count as one.
int64_t gradient_key(const at::Tensor& leaf);

}  // namespace duet
