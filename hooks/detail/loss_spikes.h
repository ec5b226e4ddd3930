#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

namespace duet {

struct LossSpike {
  std::size_t at = 0;  // its place in the losses that were given
  double loss = 0, median = 0, score = 0;
};

// Finds losses far above those before them. Their score is the modified z-score of Iglewicz and Hoaglin (1993): the
// distance from the median of the last `window` losses in units of 1.4826 times their median absolute deviation, which
// is the standard deviation where they are normally distributed, and which the spikes themselves hardly move.
class LossSpikes {
 public:
  LossSpikes(std::size_t window, double threshold) : window_(window), threshold_(threshold) {}

  // The first one among `losses`, which follow those given before. Losses that are not finite count for nothing, and
  // nothing is a spike until `window` losses are known.
  std::optional<LossSpike> find(const std::vector<double>& losses);
  // What the next loss is judged by, oldest first, and that of another run to go on from.
  const std::deque<double>& known() const { return known_; }
  void set_known(std::deque<double> losses);

 private:
  std::optional<LossSpike> judge(double loss) const;

  std::size_t window_;
  double threshold_;
  std::deque<double> known_;  // at most `window_`, without spikes
};

}  // namespace duet
