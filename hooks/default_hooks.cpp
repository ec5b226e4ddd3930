#include <duet/hooks/default_hooks.h>

#include <duet/core/trainer.h>
#include <duet/hooks/iter_timer_hook.h>
#include <duet/hooks/param_scheduler_hook.h>

#include <memory>

namespace duet {

void add_default_hooks(BaseTrainer& trainer, const DefaultHooksOptions& options) {
  if (options.timer) trainer.add_hook(std::make_unique<IterTimerHook>());
  if (options.log) trainer.add_hook(std::make_unique<LoggerHook>(options.logger));
  if (!options.param_scheduler.empty()) {
    trainer.add_hook(std::make_unique<ParamSchedulerHook>(options.param_scheduler));
  }
  if (options.save) {
    CheckpointHookOptions checkpoint = options.checkpoint;
    checkpoint.need_work_dir = false;
    trainer.add_hook(std::make_unique<CheckpointHook>(checkpoint));
  }
}

}  // namespace duet
