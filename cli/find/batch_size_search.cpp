#include "cli/find/batch_size_search.h"
#include <algorithm>
#include <utility>

namespace duet {

std::vector<BatchSizeTrial> search_batch_size(int64_t most, int64_t bytes, bool is_careful,
                                              const std::function<BatchSizeTrial(int64_t batch_size)>& run) {
  std::vector<BatchSizeTrial> trials;
  BatchSizeTrial before, largest;  // the last two that fit
  double fastest = 0;
  int64_t next = std::min<int64_t>(2, most), too_large = most + 1, slow = 0;
  while (too_large - largest.batch_size > std::max<int64_t>(1, largest.batch_size / 16) && slow < 2) {
    const auto growth = static_cast<double>(largest.bytes - before.bytes) /
                        static_cast<double>(std::max<int64_t>(1, largest.batch_size - before.batch_size));
    const double expected = growth * static_cast<double>(next - largest.batch_size);
    const bool looks_too_large = is_careful && before.fits && expected > static_cast<double>(bytes - largest.bytes);
    BatchSizeTrial trial = looks_too_large ? BatchSizeTrial{.batch_size = next} : run(next);
    trial.fits = trial.fits && trial.bytes <= bytes;
    trials.push_back(trial);
    if (trial.fits)
      before = std::exchange(largest, trial);
    else
      too_large = next;
    const bool doubles = too_large > most;
    slow = is_careful && doubles && trial.samples_per_second < 1.05 * fastest ? slow + 1 : 0;
    fastest = std::max(fastest, trial.samples_per_second);
    next = doubles ? std::min(2 * largest.batch_size, most) : (largest.batch_size + too_large) / 2;
  }
  return trials;
}

}  // namespace duet
