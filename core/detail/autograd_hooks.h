#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>

namespace duet {

// How many functions register_hook has put on the tensor's gradient, removed ones left out.
int64_t autograd_hooks(const at::Tensor& tensor);

}  // namespace duet
