#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// Which samples a dataset takes. "train" and "val" are drawn by `seed`: val has round(size * val_fraction), train the
// others; "all" has all.
struct SplitRule {
  std::string split;
  double val_fraction = 0;
  int64_t seed = 0;
};

// Their numbers among `size`, ascending. Throws DataError, begun with `what`, if there is none.
std::vector<int64_t> samples_of_split(int64_t size, const SplitRule& rule, const std::string& what);

}  // namespace duet
