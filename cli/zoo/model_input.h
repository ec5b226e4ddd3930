#pragma once

#include <string>
#include "base/batch.h"

namespace duet {

// Pictures or values as floating point: uint8 is divided by 255. Throws ConfigError that names `name` for other dtypes.
// Private to zoo/.
at::Tensor model_input(const Batch& batch, const std::string& name);

// The way out for pictures of a wrong shape: "; set <keys>", or the transform for those without channels, or with
// channels last.
std::string image_way_out(const at::Tensor& image, const std::string& keys);

}  // namespace duet
