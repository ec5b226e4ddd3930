#pragma once

#include <cstdint>
#include <vector>
#include "base/batch.h"

namespace duet {

// Samples (batches of one) as one batch. Throws DataError that names a tensor whose name, dtype or shape is not that of
// the first; `indices` are the samples' numbers for messages.
Batch stacked(const std::vector<Batch>& samples, const std::vector<int64_t>& indices);

}  // namespace duet
