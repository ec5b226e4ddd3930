#pragma once

#include "base/error.h"
#include "base/options.h"

namespace duet {

// Sizes of the models: more is a slip of the keyboard, and overflows products. Private to zoo/.
inline constexpr Range kSizes = between(1, 2147483648.0);

}  // namespace duet
