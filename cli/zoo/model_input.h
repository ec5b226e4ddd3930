#pragma once

#include <string>
#include <ATen/TensorOperators.h>
#include <c10/util/StringUtil.h>
#include "base/batch.h"
#include "base/error.h"
#include "base/options.h"

// What the models share. Private to zoo/.
namespace duet {

// Sizes of the models: more is a slip of the keyboard, and overflows products.
inline constexpr Range kSizes = between(1, 2147483648.0);

// Where pictures of the wrong shape come from.
inline constexpr const char* kShapeWayOut =
    ", or transforms: [{type: ChannelsFirst}] at the data if channels come last";

// Pictures or values as floating point: uint8 is divided by 255. Throws ConfigError that names `name` for other dtypes.
inline at::Tensor model_input(const Batch& batch, const std::string& name) {
  const at::Tensor& input = batch[name];
  if (input.scalar_type() == at::kByte) return input.to(at::kFloat) / 255;
  if (input.scalar_type() == at::kFloat) return input;
  throw ConfigError(c10::str("[Model] '", name, "' is ", input.scalar_type(), input.sizes(),
                             ", expected float32, or uint8 pictures; set cast: {", name, ": float32} at the data"));
}

}  // namespace duet
