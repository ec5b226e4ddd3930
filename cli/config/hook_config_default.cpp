#include "base/log.h"
#include "cli/config/hook_config.h"
#include "core/detail/param_scheduler_hook.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/detail/run_info_hooks.h"
#include "hooks/prediction_hooks.h"

namespace duet {

// Where config keys become the options of the hooks that a run has by default.

namespace {

// A misspelt metric, or one that says not what is better, would otherwise end the run at its first validation.
std::string best_metric(const ConfigNode& node, const std::string& best, const HookContext& context) {
  if (best.empty() || context.metrics.empty()) return best;
  const std::string metric = best == "auto" ? context.metrics.front() : best;
  HookContext choices = context;
  choices.metrics.emplace_back("auto");
  check_metric(node, "save_best", metric, choices);
  return metric;
}

std::unique_ptr<CheckpointHook> checkpoint(ConfigNode& node, HookContext& context) {
  auto options = read_options<CheckpointHookOptions>(node);
  options.interval = read_interval(node, context, options.interval, 0);
  const bool is_auto = options.save_best == "auto";
  options.save_best = best_metric(node, options.save_best, context);
  node.reject_unknown();
  if (options.max_keep == 0)
    node.fail(node.find<int64_t>("max_keep") ? "max_keep" : "max_keep_ckpts",
              "is 0, expected at least 1, or -1 to keep all");
  options.validate();
  // The hook finds the same, and says so. The loss is named: to the hook it is what there is besides the metrics.
  if (is_auto && options.save_best != "loss") options.save_best = "auto";
  return std::make_unique<CheckpointHook>(options);
}

std::unique_ptr<ParamSchedulerHook> param_scheduler(ConfigNode& node, HookContext& context) {
  node.reject_unknown();
  return std::make_unique<ParamSchedulerHook>(context.schedules);
}

std::unique_ptr<VisualizationHook> visualization(ConfigNode& node, HookContext& context) {
  auto options = read_all_options<VisualizationHookOptions>(node);
  if (context.dry_run) options.interval = 1;
  return std::make_unique<VisualizationHook>(options);
}

}  // namespace

void register_default_hook_types() {
  register_hook("RuntimeInfoHook", without_options<RuntimeInfoHook>);
  register_hook("IterTimerHook", without_options<IterTimerHook>);
  register_hook("DistSamplerSeedHook", without_options<DistSamplerSeedHook>);
  register_hook("VisualizationHook", visualization, AnyOptions(VisualizationHookOptions()));
  register_hook("SegVisualizationHook", visualization, AnyOptions(VisualizationHookOptions()));
  register_hook("ParamSchedulerHook", param_scheduler);
  register_hook("CheckpointHook", checkpoint, AnyOptions(CheckpointHookOptions()));
}

}  // namespace duet
