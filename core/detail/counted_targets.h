#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>

namespace duet {

// How many elements of `target` the mean in at::cross_entropy_loss is taken over: class indices but for `ignore_index`,
// and all elements of anything else. Waits for the device where `target` is not on the host.
int64_t counted_targets(const at::Tensor& target, int64_t ignore_index = -100);

}  // namespace duet
