#include "cli/config/hook_config.h"

#include "base/log.h"
#include "hooks/checkpoint_hook.h"
#include "hooks/detail/dist_sampler_seed_hook.h"
#include "hooks/detail/iter_timer_hook.h"
#include "hooks/param_scheduler_hook.h"
#include "hooks/detail/runtime_info_hook.h"
#include "hooks/visualization_hook.h"

#include <limits>

namespace duet {

// Where config keys become the options of the hooks that a run has by default.

namespace {

template <class H>
std::unique_ptr<H> without_options(ConfigNode& node, HookContext&) {
  node.reject_unknown();
  return std::make_unique<H>();
}

int64_t read_max_keep(const ConfigNode& node, int64_t fallback) {
  constexpr int64_t kMost = std::numeric_limits<int>::max();
  const bool mmengines = node.find<int64_t>("max_keep_ckpts").has_value();
  if (mmengines && node.find<int64_t>("max_keep")) {
    node.fail("max_keep_ckpts", "is set beside max_keep, which is the same; remove one");
  }
  const char* key = mmengines ? "max_keep_ckpts" : "max_keep";
  const int64_t count = node.read_int(key, fallback, -1, kMost);
  if (count == 0) node.fail(key, "is 0, expected at least 1, or -1 to keep all");
  return count;
}

// A misspelt metric, or one that says not what is better, would otherwise end the run at its first validation.
std::string read_best_metric(const ConfigNode& node, const HookContext& context) {
  const std::string best = node.find<std::string>("save_best").value_or("");
  node.note_kind("save_best", "auto, or the name of a metric");
  if (best.empty() || context.metrics.empty()) return best;
  const std::string metric = best == "auto" ? context.metrics.front() : best;
  HookContext choices = context;
  choices.metrics.emplace_back("auto");
  check_metric(node, "save_best", metric, choices);
  return metric;
}

std::unique_ptr<CheckpointHook> checkpoint(ConfigNode& node, HookContext& context) {
  CheckpointHookOptions options;
  options.interval = read_interval(node, context, options.interval, 0);
  options.max_keep = static_cast<int>(read_max_keep(node, options.max_keep));
  options.save_last = node.read<bool>("save_last", options.save_last);
  options.rule = read_rule(node);
  options.save_best = read_best_metric(node, context);
  node.reject_unknown();
  options.validate();
  // The hook finds the same, and says so. The loss is named: to the hook it is what there is besides the metrics.
  if (node.find<std::string>("save_best") == "auto" && options.save_best != "loss") options.save_best = "auto";
  return std::make_unique<CheckpointHook>(options);
}

std::unique_ptr<ParamSchedulerHook> param_scheduler(ConfigNode& node, HookContext& context) {
  node.reject_unknown();
  return std::make_unique<ParamSchedulerHook>(context.schedules);
}

std::unique_ptr<VisualizationHook> visualization(ConfigNode& node, HookContext& context) {
  VisualizationHookOptions options;
  options.draw = node.read<bool>("draw", options.draw);
  options.interval = node.read<int64_t>("interval", options.interval);
  options.max_samples = node.read<int64_t>("max_samples", options.max_samples);
  options.show = node.read<bool>("show", options.show);
  options.paint.alpha = node.read<double>("alpha", options.paint.alpha);
  options.paint.palette = node.read<std::vector<std::string>>("palette", options.paint.palette);
  options.paint.ignore_index = node.read<int64_t>("ignore_index", options.paint.ignore_index);
  options.paint.zoom = node.read<int64_t>("zoom", options.paint.zoom);
  options.paint.image = node.read<std::string>("image", options.paint.image);
  options.paint.target = node.read<std::string>("target", options.paint.target);
  options.paint.prediction = node.read<std::string>("prediction", options.paint.prediction);
  node.reject_unknown();
  options.validate();
  if (context.dry_run) options.interval = 1;
  return std::make_unique<VisualizationHook>(options);
}

}  // namespace

void register_default_hook_types() {
  register_hook("RuntimeInfoHook", without_options<RuntimeInfoHook>);
  register_hook("IterTimerHook", without_options<IterTimerHook>);
  register_hook("DistSamplerSeedHook", without_options<DistSamplerSeedHook>);
  register_hook("VisualizationHook", visualization);
  register_hook("SegVisualizationHook", visualization);
  register_hook("ParamSchedulerHook", param_scheduler);
  register_hook("CheckpointHook", checkpoint);
}

}  // namespace duet
