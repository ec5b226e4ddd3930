#pragma once

#include <cstdint>

namespace duet {

// Of rows, planes, channels, heads, ...
struct IndexRange {
  int64_t begin = 0, end = 0;
};

}  // namespace duet
