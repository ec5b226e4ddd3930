#pragma once

#include <cstdint>
#include <vector>
#include "../base/batch.h"

namespace duet {

// Indexed samples. get() may be called from several threads at once.
class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual int64_t size() const = 0;
  // The samples at `indices` stacked to one batch on the CPU. Throws DataError that names the bad sample.
  virtual Batch get(const std::vector<int64_t>& indices) const = 0;
};

}  // namespace duet
