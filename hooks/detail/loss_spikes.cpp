#include "hooks/detail/loss_spikes.h"
#include <cmath>
#include <utility>
#include "hooks/detail/value_history.h"

namespace duet {

std::optional<LossSpike> LossSpikes::judge(double loss) const {
  if (known_.size() < window_) return std::nullopt;
  const std::vector<double> known(known_.begin(), known_.end());
  const double median = median_of(known);
  if (loss <= median) return std::nullopt;
  std::vector<double> distances;
  for (const double value : known) distances.push_back(std::abs(value - median));
  constexpr double kStandardDeviations = 1.4826;
  // Losses that are all the same have no spread to measure by: anything above is as far as can be.
  const double score = (loss - median) / (kStandardDeviations * median_of(std::move(distances)));
  if (!(score > threshold_)) return std::nullopt;
  return LossSpike{0, loss, median, score};
}

void LossSpikes::set_known(std::deque<double> losses) {
  known_ = std::move(losses);
  while (known_.size() > window_) known_.pop_front();
}

std::optional<LossSpike> LossSpikes::find(const std::vector<double>& losses) {
  std::optional<LossSpike> first;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    if (!std::isfinite(losses[i])) continue;
    if (auto spike = judge(losses[i])) {
      spike->at = i;
      if (!first) first = spike;
      continue;
    }
    known_.push_back(losses[i]);
    if (known_.size() > window_) known_.pop_front();
  }
  return first;
}

}  // namespace duet
