#pragma once

#include <duet/core/hook.h>
#include <duet/optim/schedule.h>

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

// Sets the learning rate of every group before each update, from schedules over the whole run. The rates that the
// groups have when training first starts are the initial ones; a checkpoint keeps them, so a resume follows the same
// curve. Without schedules it leaves the rates alone.
class ParamSchedulerHook : public Hook {
 public:
  // Throws ConfigError for a schedule that is wrong by itself; before_train for one that does not fit the run.
  explicit ParamSchedulerHook(std::vector<ScheduleOptions> schedules);

  std::string name() const override { return "param_scheduler"; }
  int priority() const override { return kLow; }

  void before_train(TrainContext& context) override;
  // The logger (60) reads before this, so it sees the rate that the finished update used.
  void after_train_iter(TrainContext& context) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void apply(TrainContext& context) const;

  std::vector<ScheduleOptions> schedules_;
  std::vector<double> initial_;  // per group; empty until training starts
  int64_t run_length_ = 0;
};

}  // namespace duet
