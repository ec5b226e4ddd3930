#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <optional>
#include <utility>
#include <vector>
#include <ATen/ops/tensor.h>
#include "base/state_dict.h"
#include "hooks/detail/shared.h"

namespace duet {

struct LossSpike {
  std::size_t at = 0;  // its place in the losses that were given
  double loss = 0, median = 0, score = 0;
};

// Finds losses far above those before them. Their score is the modified z-score of Iglewicz and Hoaglin (1993): the
// distance from the median of the last `window` losses in units of 1.4826 times their median absolute deviation, which
// is the standard deviation where they are normally distributed, and which the spikes themselves hardly move. The state
// is what the next loss is judged by.
class LossSpikes : public Stateful {
 public:
  LossSpikes(std::size_t window, double threshold) : window_(window), threshold_(threshold) {}

  // The first one among `losses`, which follow those given before. Losses that are not finite count for nothing, and
  // nothing is a spike until `window` losses are known.
  std::optional<LossSpike> find(const std::vector<double>& losses) {
    std::optional<LossSpike> first;
    for (std::size_t i = 0; i < losses.size(); ++i) {
      if (!std::isfinite(losses[i])) continue;
      if (const auto spike = judge(losses[i], i)) {
        if (!first) first = spike;
        continue;
      }
      known_.push_back(losses[i]);
      if (known_.size() > window_) known_.pop_front();
    }
    return first;
  }

  StateDict state_dict() const override {
    StateDict state;
    state.set("losses", at::tensor(at::ArrayRef<double>(std::vector<double>(known_.begin(), known_.end()))));
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    known_.clear();
    if (!state.has("losses")) return;
    const at::Tensor losses = state.tensor("losses").to(at::kCPU, at::kDouble).contiguous();
    const double* const end = losses.const_data_ptr<double>() + losses.numel();
    known_.assign(end - std::min<int64_t>(losses.numel(), static_cast<int64_t>(window_)), end);
  }

 private:
  std::optional<LossSpike> judge(double loss, std::size_t at) const {
    if (known_.size() < window_) return std::nullopt;
    const std::vector<double> known(known_.begin(), known_.end());
    const double median = median_of(known);
    if (loss <= median) return std::nullopt;
    std::vector<double> distances;
    for (const double value : known) distances.push_back(std::abs(value - median));
    constexpr double kStandardDeviations = 1.4826;
    // Losses that are all the same have no spread to measure by: anything above is as far as can be.
    const double score = (loss - median) / (kStandardDeviations * median_of(std::move(distances)));
    return score > threshold_ ? std::optional(LossSpike{at, loss, median, score}) : std::nullopt;
  }

  std::size_t window_;
  double threshold_;
  std::deque<double> known_;  // at most `window_`, oldest first, without spikes
};

}  // namespace duet
