#pragma once

#include <duet/hooks/checkpoint_hook.h>
#include <duet/hooks/logger_hook.h>
#include <duet/optim/schedule.h>

#include <vector>

namespace duet {

class BaseTrainer;

// The hooks nearly every run wants. Set a flag to false to leave one out.
struct DefaultHooksOptions {
  bool timer = true;  // IterTimerHook
  bool log = true;    // LoggerHook
  LoggerHookOptions logger = {};
  std::vector<ScheduleOptions> param_scheduler = {};  // ParamSchedulerHook; empty: the learning rate stays
  bool save = true;                                   // CheckpointHook; without a work_dir it saves nothing
  CheckpointHookOptions checkpoint = {};
};

// Adds timer (50), logger (60), param_scheduler (70) and checkpoint (90): the logger reads the times and the rate of
// the finished update, then the rate of the next one is set, and a checkpoint holds all of it.
// Throws ConfigError for options out of range.
void add_default_hooks(BaseTrainer& trainer, const DefaultHooksOptions& options = {});

}  // namespace duet
