#include "hooks/detail/switch_mode_hook.h"
#include "base/log.h"

namespace duet {

const OptionFields& SwitchModeHookOptions::fields() {
  using O = SwitchModeHookOptions;
  return described<O>("SwitchModeHook", [](const auto& add) {
    add("step", &O::step, "the first step that runs in `mode`").in(at_least(0));
    add("mode", &O::mode, "how steps run from there on", {"eager", "graph"});
  });
}

SwitchModeHook::SwitchModeHook(const SwitchModeHookOptions& options) : options_(options) { check_options(options); }

void SwitchModeHook::before_train_iter(TrainContext& context) {
  if (context.progress.step < options_.step || context.mode == to_string(options_.mode)) return;
  context.trainer.set_mode(options_.mode);
  log_info("[SwitchModeHook] steps run in mode " + context.mode + " from step " +
           std::to_string(context.progress.step) + " on");
}

}  // namespace duet
