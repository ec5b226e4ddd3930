#pragma once

#include <duet/optim/schedule.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace duet {

constexpr int64_t kEndless = std::numeric_limits<int64_t>::max();

// Where a schedule stands: step s of [0, length), the value it took over at step 0, and the group's initial value.
struct ScheduleStep {
  int64_t s = 0;
  int64_t length = kEndless;
  double taken_over = 0;
  double initial = 0;
};

// What distinguishes one type of schedule. Private to optim/.
struct ScheduleFormula {
  const char* type;
  // Towards a level of its own instead of by a factor: its order among others matters, so it must govern alone.
  bool anneals;
  bool waits;  // it follows a metric, not the time; its value comes from whoever watches the metric
  double (*value)(const ScheduleOptions& options, const ScheduleStep& step);
};

// Throws ConfigError listing the known types.
const ScheduleFormula& schedule_formula(const std::string& type);
std::vector<std::string> schedule_types();

// Updates that the warm-up and the decay of a WSD of `length` updates take.
struct WsdLengths {
  int64_t warmup, decay;
};
WsdLengths wsd_lengths(const WsdOptions& options, int64_t length);

}  // namespace duet
