#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "optim/schedules/detail/schedule_formula.h"
#include "optim/schedules/schedule_curve.h"

namespace duet {

// One schedule laid over a run. Private to optim/.
struct SchedulePiece {
  ScheduleOptions options;  // in steps, or in epochs if it changes between epochs only
  const ScheduleFormula* formula = nullptr;
  int64_t unit = 1;           // steps in one of its steps: 1, or those of an epoch
  int64_t begin = 0;          // in steps, as end
  int64_t end = kEndless;     // kEndless: unknown
  int64_t length = kEndless;  // in its own steps; kEndless if it has no end and needs none
  std::size_t plateau = 0;    // ReduceOnPlateau: its place among those of its number

  // Value at `step` >= begin of a group with that initial value.
  double at(int64_t step, double taken_over, double initial) const;
  // "Cosine from step 100", for messages
  std::string name() const;
};

// Throws ConfigError if it counts epochs of unknown length or needs an end that is unknown.
SchedulePiece lay_over(const ScheduleOptions& schedule, const ScheduleRun& run);

// Those that drive `param_name` and begin within the run, in order of begin; equal ones in order of the list.
std::vector<SchedulePiece> pieces_of(const std::vector<ScheduleOptions>& schedules, const std::string& param_name,
                                     const ScheduleRun& run);

// The param_names that schedules drive, each once.
std::vector<std::string> scheduled_params(const std::vector<ScheduleOptions>& schedules);

}  // namespace duet
