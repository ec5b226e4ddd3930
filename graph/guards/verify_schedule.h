#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

namespace duet {

// When a replay is compared with an eager run: after 1, 2, 4, ... replays and then every `interval` ones (0: never),
// and at once where something was noticed.
class VerifySchedule {
 public:
  explicit VerifySchedule(int64_t interval) : interval_(interval) { restart(); }

  // The step was captured just now.
  void restart() {
    unverified_ = 0;
    next_ = interval_ > 0 ? 1 : kNever;
  }
  // Something was noticed that may make the next replay wrong. Those before it were fine.
  void must_verify() { must_verify_ = true; }

  // Whether the next replay is to be compared.
  bool due() const { return must_verify_ || unverified_ + 1 >= next_; }
  // Replays that counted since the last comparison and may have been wrong already.
  int64_t doubtful() const { return must_verify_ ? 0 : unverified_; }

  void replayed() { ++unverified_; }
  void verified() {
    next_ = interval_ > 0 ? std::min(2 * (unverified_ + 1), interval_) : kNever;
    unverified_ = 0;
    must_verify_ = false;
  }

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  int64_t interval_;
  int64_t unverified_ = 0;  // replays since the last comparison
  int64_t next_ = kNever;   // replays until the next one
  bool must_verify_ = false;
};

}  // namespace duet
