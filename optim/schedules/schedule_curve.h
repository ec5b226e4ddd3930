#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>
#include "../hyper_parameters.h"
#include "schedule.h"

namespace duet {

struct SchedulePiece;

// What schedules need to know of a run. 0: unknown.
struct ScheduleRun {
  int64_t steps = 0;  // of the whole run: the end of schedules that name none
  int64_t steps_per_epoch = 0;
};

// The schedule with everything that counts epochs counted in steps, if it is to be converted; itself if not.
// Throws ConfigError if it counts epochs and their length is unknown.
ScheduleOptions in_steps(const ScheduleOptions& schedule, int64_t steps_per_epoch);

// Validates each, then together. Throws ConfigError if one that needs an end has none in a run of unknown length, if
// one counts epochs of unknown length, if the parts of a WSD do not fit into it, or if one that anneals (Polynomial,
// Cosine, CosineRestart, OneCycle, WSD) overlaps another of the same number. The others only multiply: they may
// overlap.
void validate_schedules(const std::vector<ScheduleOptions>& schedules, const ScheduleRun& run);

// One sentence for each interval between two schedules of a number, one of which anneals, in which the value just
// stays. Legal, but seldom meant.
std::vector<std::string> schedule_gaps(const std::vector<ScheduleOptions>& schedules, const ScheduleRun& run);

// The schedules that drive one number, laid over a run: its value as a function of the step. Copies are cheap.
class ScheduleCurve {
 public:
  // Takes those of `schedules` whose param_name is `param_name`; a OneCycle with cycle_momentum is one of momentum too.
  ScheduleCurve(const std::vector<ScheduleOptions>& schedules, const std::string& param_name, const ScheduleRun& run);

  // Value for step `step` (from 0) of a group whose initial value is `initial`. Schedules chain in order of begin.
  // `reductions`: what each ReduceOnPlateau of this curve has multiplied the group's value by so far, in list order;
  // empty: nothing.
  double at(int64_t step, double initial, const std::vector<double>& reductions = {}) const;

 private:
  std::shared_ptr<const std::vector<SchedulePiece>> pieces_;
};

// The numbers of the optimizer that schedules drive, each with the param_name that stands for it: momentum means beta1
// in groups without momentum. Throws ConfigError if no group has such a number, or if two param_names mean the same
// one.
std::map<std::string, std::string> scheduled_numbers(const std::vector<ScheduleOptions>& schedules,
                                                     const HyperParameters& hyper_parameters);

// Values by number, step and group for the first `steps` steps, from the values that the groups have now. A
// ReduceOnPlateau counts as never reduced. A group that has not the number gets NaN.
std::map<std::string, std::vector<std::vector<double>>> schedule_table(const std::vector<ScheduleOptions>& schedules,
                                                                       const HyperParameters& hyper_parameters,
                                                                       const ScheduleRun& run, int64_t steps);

}  // namespace duet
