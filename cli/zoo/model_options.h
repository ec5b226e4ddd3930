#pragma once

#include <c10/util/StringUtil.h>
#include "../../base/error.h"

#include <cstdint>

namespace duet {

// Range checks that the models share; private to models/.

inline void check_size(const char* where, const char* field, int64_t value) {
  constexpr int64_t kLargest = int64_t{1} << 31;  // more is a slip of the keyboard, and overflows products
  if (value >= 1 && value <= kLargest) return;
  throw ConfigError(c10::str("[", where, "] ", field, " is ", value, ", expected an integer from 1 to ", kLargest));
}

inline void check_dropout(const char* where, double value) {
  if (value >= 0 && value < 1) return;
  throw ConfigError(c10::str("[", where, "] dropout is ", value, ", expected a number in [0, 1)"));
}

}  // namespace duet
