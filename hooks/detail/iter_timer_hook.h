#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include "core/hook.h"

namespace duet {

// Measures each step from the end of the one before it, so that a wait for the device at a log line counts too;
// validation and the turn of an epoch do not. Puts the time into TrainContext::step.seconds, and the time that the
// rest of the run will take into the gauge "eta". Never syncs.
class IterTimerHook : public Hook {
 public:
  // Averages run over the last `window` steps, >= 1. `now` gives seconds; default: the steady clock.
  explicit IterTimerHook(int64_t window = 10, std::function<double()> now = nullptr);

  std::string name() const override { return "timer"; }
  int priority() const override { return kNormal; }

  // Means over the window; 0 before the first step. Data time is part of step time.
  double mean_step_seconds() const;
  double mean_data_seconds() const;
  // Seconds until the run's last step if it goes on as on average since before_train, validation and checkpoints
  // included; NaN if that is unknown.
  double eta_seconds(const TrainContext& context) const;

  void before_train(TrainContext& context) override;
  void before_train_epoch(TrainContext& context) override;
  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void before_val(TrainContext& context) override;
  void after_val(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  struct Times {
    double step = 0;
    double data = 0;
  };
  double mean(double Times::* field) const;

  std::size_t window_;
  std::function<double()> now_;
  std::optional<double> mark_;  // end of the last step; none: the next step starts the clock itself
  double val_start_ = 0;
  double train_start_ = 0;
  int64_t start_step_ = 0;
  std::deque<Times> times_;
};

}  // namespace duet
