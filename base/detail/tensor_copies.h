#pragma once

#include <ATen/core/Tensor.h>
#include "base/batch.h"

namespace duet {

// Copies of tensors, and their way back.

// On the tensors' device, or on the host if the device has no memory left.
NamedTensors copy_of(const NamedTensors& tensors);
// The values of `saved` into `live`, and those of `live` into `saved`.
void swap_values(const NamedTensors& saved, const NamedTensors& live);
void restore(const NamedTensors& saved, const NamedTensors& live);
// What did not change needs no write, and an expanded buffer would refuse one.
void restore(const at::Tensor& saved, const at::Tensor& live);

}  // namespace duet
