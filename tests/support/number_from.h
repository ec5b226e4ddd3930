#pragma once

#include <cstdint>
#include <cstdlib>

namespace duet::testing {

// What a variable of the environment says; `otherwise` where it is not set.
inline int64_t number_from(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::atoll(text);
}

}  // namespace duet::testing
