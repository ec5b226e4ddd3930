#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include "graph/graph_options.h"

namespace duet {

// Which replays of a signature are checked first, that is whose host code runs (TraceCheck): all of them where that
// costs little beside the kernels or where it is needed; otherwise the first ones in a row, and then random ones whose
// cost stays within the budget.
class CheckSchedule {
 public:
  // So many replays in a row find host code that changes every so often, and what begins after as many steps.
  static constexpr int64_t kFirst = 1024;

  CheckSchedule(Check check, double budget) : check_(check), budget_(budget), random_(std::random_device{}()) {}

  // The step was captured just now. `always`: each replay needs its host code.
  void restart(bool always) {
    always_ = always;
    in_a_row_ = unchecked_ = 0;
    check_seconds_ = replay_seconds_ = std::numeric_limits<double>::infinity();
    pause_ = 0;
  }
  // From here on every replay is checked.
  void check_always() { always_ = true; }
  // The next one is.
  void must_check() { pause_ = 0; }

  bool due() const { return always_ || (check_ != Check::kOff && pause_ == 0); }
  // Replays since the last check.
  int64_t unchecked() const { return unchecked_; }

  void replayed() {
    ++unchecked_;
    pause_ = std::max<int64_t>(pause_ - 1, 0);
  }
  void checked(double check_seconds, double replay_seconds) {
    unchecked_ = 0;
    // What disturbs a measurement makes it longer: each of the two on its own.
    check_seconds_ = std::min(check_seconds_, check_seconds);
    replay_seconds_ = std::min(replay_seconds_, replay_seconds);
    ++in_a_row_;
    const bool every = check_ == Check::kEvery || ratio() <= budget_ || in_a_row_ < kFirst;
    pause_ = every ? 0 : next_pause();
  }
  void verified() { unchecked_ = 0; }

 private:
  double ratio() const { return check_seconds_ / replay_seconds_; }
  // Replays until the next check, budget / ratio of which are checked on average.
  int64_t next_pause() {
    if (budget_ <= 0) return std::numeric_limits<int64_t>::max();
    return std::geometric_distribution<int64_t>(std::min(1.0, budget_ / ratio()))(random_);
  }

  Check check_;
  double budget_;
  bool always_ = false;
  int64_t in_a_row_ = 0;
  int64_t unchecked_ = 0;
  int64_t pause_ = 0;  // replays until the next check
  // The least that each has taken so far.
  double check_seconds_ = std::numeric_limits<double>::infinity();
  double replay_seconds_ = std::numeric_limits<double>::infinity();
  std::minstd_rand random_;
};

}  // namespace duet
