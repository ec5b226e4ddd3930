#include <algorithm>
#include "cli/find/find.h"

namespace duet {

namespace {

double bytes_by_growth(const BatchSizeTrial& before, const BatchSizeTrial& last, int64_t batch_size) {
  const double growth =
      static_cast<double>(last.bytes - before.bytes) / static_cast<double>(last.batch_size - before.batch_size);
  return static_cast<double>(last.bytes) + growth * static_cast<double>(batch_size - last.batch_size);
}

}  // namespace

std::vector<BatchSizeTrial> search_batch_size(int64_t most, int64_t bytes, bool is_careful,
                                              const std::function<BatchSizeTrial(int64_t batch_size)>& run) {
  std::vector<BatchSizeTrial> trials, fitting;  // in order of size, as each is larger than those before
  double fastest = 0;
  int64_t high = most + 1, slow = 0;
  const auto low = [&fitting] { return fitting.empty() ? 0 : fitting.back().batch_size; };
  for (int64_t next = std::min<int64_t>(2, most); high - low() > std::max<int64_t>(1, low() / 16) && slow < 2;) {
    const bool looks_too_large = is_careful && fitting.size() > 1 &&
                                 bytes_by_growth(fitting.end()[-2], fitting.back(), next) > static_cast<double>(bytes);
    BatchSizeTrial trial = looks_too_large ? BatchSizeTrial{.batch_size = next} : run(next);
    trial.fits = trial.fits && trial.bytes <= bytes;
    trials.push_back(trial);
    if (trial.fits)
      fitting.push_back(trial);
    else
      high = next;
    const bool doubles = high > most;
    slow = is_careful && doubles && trial.samples_per_second < 1.05 * fastest ? slow + 1 : 0;
    fastest = std::max(fastest, trial.samples_per_second);
    next = doubles ? std::min(2 * low(), most) : (low() + high) / 2;
  }
  return trials;
}

}  // namespace duet
