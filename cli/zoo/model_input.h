#pragma once

#include <string>
#include "base/batch.h"
#include "base/error.h"
#include "base/options.h"

// What the models share. Private to zoo/.
namespace duet {

// Sizes of the models: more is a slip of the keyboard, and overflows products.
inline constexpr Range kSizes = between(1, 2147483648.0);

// Pictures or values as floating point: uint8 is divided by 255. Throws ConfigError that names `name` for other dtypes.
at::Tensor model_input(const Batch& batch, const std::string& name);

// The way out for pictures of a wrong shape: "; set <keys>", or the transform for those without channels, or with
// channels last.
std::string image_way_out(const at::Tensor& image, const std::string& keys);

}  // namespace duet
