#pragma once

#include <cstdint>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

// Throws DataError unless all of `indices` lie in [0, size). `who` is the dataset's class. Not installed.
inline void check_indices(const char* who, const std::vector<int64_t>& indices, int64_t size) {
  for (const int64_t index : indices) {
    if (index >= 0 && index < size) continue;
    throw DataError(c10::str("[", who, "] found sample index ", index, ", expected 0 to ", size - 1,
                             "; build the sampler with this dataset's size()"));
  }
}

}  // namespace duet
