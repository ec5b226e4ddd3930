#pragma once

#include <algorithm>
#include <chrono>

namespace duet {

// How long ago another process was heard of. Time that this process did not listen in, since it was stopped or the
// machine was too busy, counts little: the other may well have spoken. Private to distributed/.
class HeartbeatAge {
 public:
  using Clock = std::chrono::steady_clock;
  // No two looks are further apart in a process that runs.
  static constexpr std::chrono::milliseconds kLongestPause{200};

  void look(Clock::time_point now, bool heard) {
    const Clock::duration pause = looked_ == Clock::time_point() ? Clock::duration::zero() : now - looked_;
    length_ = heard ? Clock::duration::zero() : length_ + std::min<Clock::duration>(pause, kLongestPause);
    looked_ = now;
  }
  Clock::duration length() const { return length_; }

 private:
  Clock::time_point looked_{};
  Clock::duration length_{0};
};

}  // namespace duet
