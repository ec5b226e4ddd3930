#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "optim/schedules/schedule.h"

namespace duet {

// What distinguishes one type of schedule. Private to optim/.
struct ScheduleFormula {
  const char* type;
  // Towards a level of its own instead of by a factor: its order among others matters, so it must govern alone.
  bool anneals;
  bool waits;  // it follows a metric, not the time; its value comes from whoever watches the metric
  double (*value)(const ScheduleOptions& options, const ScheduleStep& step);
};

// Throws ConfigError listing the known types if there is no such type and no formula of its own.
const ScheduleFormula& schedule_formula(const ScheduleOptions& options);
std::vector<std::string> schedule_types();

// Steps that the warm-up and the decay of a WSD of `length` steps take.
struct WsdLengths {
  int64_t warmup, decay;
};
WsdLengths wsd_lengths(const WsdOptions& options, int64_t length);

}  // namespace duet
