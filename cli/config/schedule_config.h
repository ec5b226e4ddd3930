#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "cli/config/config.h"
#include "optim/schedules/schedule.h"

namespace duet {

// One entry of param_scheduler, as written: with by_epoch it counts epochs.
struct ScheduleConfig {
  Schedule options;
  ConfigNode node;
};

// Reads `param_scheduler`. Type names are duet's (Linear, Cosine, ...), or mmengine's: those with LR, Momentum or
// ParamScheduler at the end, which come with mmengine's default factors; and those of register_schedule().
std::vector<ScheduleConfig> read_schedules(const ConfigNode& root);
// The names that are not registered; those with LR, Momentum or ParamScheduler at the end on request.
std::vector<std::string> builtin_schedules(bool with_endings = true);

// Throws ConfigError for a schedule that watches a metric which is not one of `metrics`.
void check_monitors(const std::vector<ScheduleConfig>& schedules, const std::vector<std::string>& metrics);

// The schedules with epochs as steps where they are to be converted. Throws ConfigError if one counts epochs and
// their length is not known (0).
std::vector<Schedule> resolve_schedules(const std::vector<ScheduleConfig>& schedules, int64_t steps_per_epoch);

}  // namespace duet
