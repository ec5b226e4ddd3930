#pragma once

#include <chrono>
#include <c10/util/StringUtil.h>
#include "core/train_context.h"

namespace duet {

// LoopOptions::max_seconds: interrupts a run that takes longer.
class TimeLimit {
 public:
  explicit TimeLimit(double seconds) : seconds_(seconds) {}

  void start() {
    running_ = true;
    started_ = Clock::now();
  }
  void stop() { running_ = false; }

  void check(RunControl& control) const {
    if (seconds_ <= 0 || !running_) return;
    const std::chrono::duration<double> passed = Clock::now() - started_;
    if (passed.count() >= seconds_) control.interrupt(c10::str("the time limit of ", seconds_, " s is reached"));
  }

 private:
  using Clock = std::chrono::steady_clock;

  double seconds_;  // 0: no limit
  bool running_ = false;
  Clock::time_point started_{};
};

}  // namespace duet
