#include "data/detail/split.h"
#include <algorithm>
#include <cmath>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "data/sampler.h"

namespace duet {

std::vector<int64_t> samples_of_split(int64_t size, const SplitRule& rule, const std::string& what) {
  require<DataError>(size > 0, what + ": found no sample, expected at least 1; correct the path");
  std::vector<int64_t> order =
      EpochSampler(size, /*shuffle=*/rule.split != "all", static_cast<uint64_t>(rule.seed)).next(size);
  const auto val_size = static_cast<std::ptrdiff_t>(std::llround(static_cast<double>(size) * rule.val_fraction));
  if (rule.split == "val") order.erase(order.begin() + val_size, order.end());
  if (rule.split == "train") order.erase(order.begin(), order.begin() + val_size);
  if (order.empty()) {
    throw DataError(c10::str(what, ": found no sample in split '", rule.split, "' of ", size, " with val_fraction ",
                             rule.val_fraction, ", expected at least 1; ", rule.split == "val" ? "raise" : "lower",
                             " val_fraction, or give more samples"));
  }
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace duet
