#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>
#include "base/state_dict.h"
#include "optim/groups/param_group.h"
#include "optim/schedules/schedule.h"

namespace duet {

// Without CustomSchedule, in the order of Schedule.
std::vector<std::string> schedule_types();
// One of that type with its defaults; a CustomSchedule without a formula for any other name.
Schedule make_schedule(const std::string& type);

// What all schedules have.
struct ScheduleInterval {
  int64_t begin, end;
  bool by_epoch;
  std::string param_name;
};
ScheduleInterval interval_of(const Schedule& schedule);

// Its formula, for a step of its interval. ReduceOnPlateau follows a metric, not the time: it gives what it took over.
double schedule_value(const Schedule& schedule, const ScheduleStep& at);

// Steps that the warm-up and the decay of a WSD of `length` steps take.
struct WsdLengths {
  int64_t warmup, decay;
};
WsdLengths wsd_lengths(const WSD& options, int64_t length);

// The schedule with everything that counts epochs counted in steps, if it is to be converted; itself if not.
// Throws ConfigError if it counts epochs and their length is unknown.
Schedule in_steps(const Schedule& schedule, int64_t steps_per_epoch);

// Validates each, then together. Throws ConfigError if one that needs an end has none in a run of unknown length, if
// one counts epochs of unknown length, if the parts of a WSD do not fit into it, or if one that anneals (Polynomial,
// Cosine, CosineRestart, OneCycle, WSD) overlaps another of the same number. The others only multiply: they may
// overlap.
void validate_schedules(const std::vector<Schedule>& schedules, const ScheduleRun& run);

// What is legal, but seldom meant: a sentence for each schedule that the run ends before.
std::vector<std::string> schedule_gaps(const std::vector<Schedule>& schedules, const ScheduleRun& run);

// The numbers of the optimizer that schedules drive, each with the param_name that stands for it: momentum means beta1
// in groups without momentum. Throws ConfigError if no group has such a number, or if two param_names mean the same
// one.
std::map<std::string, std::string> scheduled_numbers(const std::vector<Schedule>& schedules,
                                                     const HyperParameters& hyper_parameters);

// Values by number, step and group for the first `steps` steps, from the values that the groups have now. A
// ReduceOnPlateau counts as never reduced. A group that has not the number gets NaN.
std::map<std::string, std::vector<std::vector<double>>> schedule_table(const std::vector<Schedule>& schedules,
                                                                       const HyperParameters& hyper_parameters,
                                                                       const ScheduleRun& run, int64_t steps);

// Watches a metric and says when it has stopped improving, as torch's ReduceLROnPlateau does. NaN is no improvement.
class PlateauWatch : public Stateful {
 public:
  explicit PlateauWatch(ReduceOnPlateau options);

  const ReduceOnPlateau& options() const { return options_; }
  // Takes the metric of one validation; true if the value is to be reduced now.
  bool observe(double metric);
  // What a reduction makes of `value`: itself if the difference is not worth it.
  double reduced(double value) const;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  bool improves(double metric) const;

  ReduceOnPlateau options_;
  double best_;
  int64_t bad_ = 0;       // validations since the last improvement
  int64_t cooldown_ = 0;  // validations that will not count
};

}  // namespace duet
