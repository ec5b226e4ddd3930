#include "cli/find/batch_size_search.h"
#include <algorithm>
#include <limits>

namespace duet {

void BatchSizeSearch::search(const std::function<BatchSizeTrial(int64_t batch_size)>& run) {
  int64_t low = 0, high = most + 1;
  bool doubles = true;
  for (int64_t next = std::min<int64_t>(2, most); high - low > std::max<int64_t>(1, low / 16);) {
    BatchSizeTrial trial{.batch_size = next};
    if (!looks_too_large(next)) trial = run(next);
    trial.fits = trial.fits && trial.bytes <= bytes;
    trials.push_back(trial);
    (trial.fits ? low : high) = next;
    doubles = doubles && trial.fits;
    if (doubles && is_careful && is_level()) return;
    next = doubles ? std::min(2 * low, most) : (low + high) / 2;
  }
}

// The growth is that of the whole process: its first steps also load libraries.
bool BatchSizeSearch::looks_too_large(int64_t batch_size) const {
  std::vector<BatchSizeTrial> run;
  std::ranges::copy_if(trials, std::back_inserter(run), &BatchSizeTrial::fits);
  if (!is_careful || run.size() < 2) return false;
  std::ranges::sort(run, {}, &BatchSizeTrial::batch_size);
  const BatchSizeTrial &last = run.back(), &before = run[run.size() - 2];
  const double growth =
      static_cast<double>(last.bytes - before.bytes) / static_cast<double>(last.batch_size - before.batch_size);
  const double further = growth * static_cast<double>(batch_size - last.batch_size);
  return static_cast<double>(last.bytes) + further > static_cast<double>(bytes);
}

bool BatchSizeSearch::is_level() const {
  if (trials.size() < 3) return false;
  const auto best = [](auto begin, auto end) {
    return std::max_element(begin, end,
                            [](const auto& a, const auto& b) { return a.samples_per_second < b.samples_per_second; })
        ->samples_per_second;
  };
  return best(trials.end() - 2, trials.end()) < 1.05 * best(trials.begin(), trials.end() - 2);
}

int64_t BatchSizeSearch::largest() const {
  int64_t largest = 0;
  for (const BatchSizeTrial& trial : trials) largest = std::max(largest, trial.fits ? trial.batch_size : 0);
  return largest;
}

int64_t BatchSizeSearch::fastest() const {
  double most_samples = 0;
  for (const BatchSizeTrial& trial : trials) {
    if (trial.fits) most_samples = std::max(most_samples, trial.samples_per_second);
  }
  int64_t fastest = std::numeric_limits<int64_t>::max();
  for (const BatchSizeTrial& trial : trials) {
    if (trial.fits && trial.samples_per_second >= 0.95 * most_samples) fastest = std::min(fastest, trial.batch_size);
  }
  return fastest;
}

}  // namespace duet
