#pragma once

#include <duet/cli/config.h>
#include <duet/optim/schedule.h>
#include <duet/optim/trainer_options.h>

#include <cstdint>
#include <vector>

namespace duet {

// One entry of param_scheduler; with by_epoch its begin, end, step_size and milestones count epochs.
struct ScheduleConfig {
  ScheduleOptions options;
  bool by_epoch = false;
  ConfigNode node;
};

// Reads `optim_wrapper` into optimizer, clip_grad and amp. What this version has not is refused, never ignored.
void read_optim_wrapper(const ConfigNode& node, TrainerOptions& options);

// Reads `param_scheduler`. Type names are duet's (Linear, Cosine, ...) or mmengine's (LinearLR, CosineAnnealingLR,
// ...); the latter come with mmengine's default factors.
std::vector<ScheduleConfig> read_schedules(const ConfigNode& root);

// The schedules in updates. Schedules by epoch change at every update, as mmengine's do with
// convert_to_iter_based. Throws ConfigError if one counts epochs and their length is not known (0).
std::vector<ScheduleOptions> resolve_schedules(const std::vector<ScheduleConfig>& schedules, int64_t updates_per_epoch);

}  // namespace duet
