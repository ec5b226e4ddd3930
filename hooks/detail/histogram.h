#pragma once

#include <cstdint>
#include <optional>
#include <ATen/core/Tensor.h>
#include "core/train_context.h"

namespace duet {

// Of the finite values of a tensor in `bins` bins as numpy.histogram chooses them; of a sparse one
// the values that it holds, of a complex one its real and imaginary parts. Nothing if there is none. Waits for the
// tensor's device.
std::optional<Histogram> histogram_of(const at::Tensor& tensor, int64_t bins);

}  // namespace duet
