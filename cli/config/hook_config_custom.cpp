#include <c10/util/StringUtil.h>
#include "cli/config/hook_config.h"
#include "core/hook_list.h"
#include "hooks/early_stopping_hook.h"
#include "hooks/ema_hook.h"
#include "hooks/empty_cache_hook.h"
#include "hooks/nan_guard_hook.h"
#include "hooks/prediction_writer_hook.h"
#include "hooks/profiler_hook.h"
#include "hooks/sync_buffers_hook.h"

#include <limits>

namespace duet {

// Where config keys become the options of the hooks that a run asks for.

namespace {

constexpr int64_t kLongest = std::numeric_limits<int>::max();

int64_t read_begin(const ConfigNode& node) {
  const bool old_name = node.find<int64_t>("start_iters").has_value();
  if (old_name && node.find<int64_t>("begin_iter")) {
    node.fail("start_iters", "is set beside begin_iter, which is the same; remove one");
  }
  return node.read_int(old_name ? "start_iters" : "begin_iter", 0, 0, kLongest);
}

std::string free_name(const std::string& wanted, const HookList& hooks) {
  std::string name = wanted;
  for (int number = 2; hooks.find(name) != nullptr; ++number) name = c10::str(wanted, "_", number);
  return name;
}

// With mmengine's keys. Without `name` the first of a run is called ema, further ones ema_2, ema_3, ...
std::unique_ptr<EMAHook> ema(ConfigNode& node, HookContext& context) {
  EMAHookOptions options;
  options.average.type = node.read<std::string>("ema_type", options.average.type);
  options.average.momentum = node.read<double>("momentum", options.average.momentum);
  if (options.average.type == "MomentumAnnealingEMA") {
    options.average.gamma = node.read<int64_t>("gamma", options.average.gamma);
  }
  options.average.interval = node.read<int64_t>("interval", options.average.interval);
  options.update_buffers = node.read<bool>("update_buffers", options.update_buffers);
  options.evaluate_on_ema = node.read<bool>("evaluate_on_ema", options.evaluate_on_ema);
  options.begin_iter = read_begin(node);
  options.begin_epoch = node.read_int("begin_epoch", options.begin_epoch, 0, kLongest);
  const std::optional<std::string> name = node.find<std::string>("name");
  options.name = name ? *name : free_name(options.name, context.hooks);
  node.reject_unknown();
  return std::make_unique<EMAHook>(options);
}

std::unique_ptr<EarlyStoppingHook> early_stopping(ConfigNode& node, HookContext& context) {
  EarlyStoppingHookOptions options;
  options.monitor = node.need<std::string>("monitor");
  node.note_kind("monitor", "the name of a metric");
  options.rule = read_rule(node);
  options.min_delta = node.read_number("min_delta", options.min_delta, 0);
  options.patience = node.read_int("patience", options.patience, 1, kLongest);
  options.strict = node.read<bool>("strict", options.strict);
  options.check_finite = node.read<bool>("check_finite", options.check_finite);
  options.stopping_threshold = node.find<double>("stopping_threshold");
  options.divergence_threshold = node.find<double>("divergence_threshold");
  node.reject_unknown();
  if (options.strict) check_metric(node, "monitor", options.monitor, context);
  return std::make_unique<EarlyStoppingHook>(options);
}

std::unique_ptr<EmptyCacheHook> empty_cache(ConfigNode& node, HookContext&) {
  EmptyCacheHookOptions options;
  options.before_epoch = node.read<bool>("before_epoch", options.before_epoch);
  options.after_epoch = node.read<bool>("after_epoch", options.after_epoch);
  options.after_iter = node.read<bool>("after_iter", options.after_iter);
  node.reject_unknown();
  return std::make_unique<EmptyCacheHook>(options);
}

std::unique_ptr<SyncBuffersHook> sync_buffers(ConfigNode& node, HookContext&) {
  node.reject_unknown();
  return std::make_unique<SyncBuffersHook>();
}

std::unique_ptr<NaNGuardHook> nan_guard(ConfigNode& node, HookContext&) {
  NaNGuardHookOptions options;
  options.interval = node.read_int("interval", options.interval, 1, kLongest);
  options.action = node.read_choice("action", options.action, {"raise", "stop", "warn"});
  node.reject_unknown();
  return std::make_unique<NaNGuardHook>(options);
}

// Beside one another, or in a map `schedule` as mmengine has them.
void read_profiler_schedule(const ConfigNode& node, ProfilerHookOptions& options) {
  const ConfigNode map = node.child("schedule");
  const ConfigNode& place = map.exists() && !map.is_null() ? map : node;
  options.skip_first = place.read_int("skip_first", options.skip_first, 0, kLongest);
  options.wait = place.read_int("wait", options.wait, 0, kLongest);
  options.warmup = place.read_int("warmup", options.warmup, 0, kLongest);
  options.active = place.read_int("active", options.active, 1, kLongest);
  options.repeat = place.read_int("repeat", options.repeat, 0, kLongest);
}

std::unique_ptr<ProfilerHook> profiler(ConfigNode& node, HookContext& context) {
  ProfilerHookOptions options;
  read_profiler_schedule(node, options);
  options.record_shapes = node.read<bool>("record_shapes", options.record_shapes);
  options.profile_memory = node.read<bool>("profile_memory", options.profile_memory);
  options.with_stack = node.read<bool>("with_stack", options.with_stack);
  options.with_flops = node.read<bool>("with_flops", options.with_flops);
  options.cuda = node.read<bool>("activity_with_cuda", options.cuda);
  options.nvtx = node.read<bool>("nvtx", options.nvtx);
  options.folder = read_output(node, "folder", context);
  node.reject_unknown();
  return std::make_unique<ProfilerHook>(options);
}

std::unique_ptr<PredictionWriterHook> prediction_writer(ConfigNode& node, HookContext& context) {
  PredictionWriterHookOptions options;
  options.folder = read_output(node, "folder", context);
  if (!context.output.empty()) options.folder = context.output;
  options.format = node.read_choice("format", options.format, {"safetensors", "jsonl", "both"});
  options.per_batch = node.read<bool>("per_batch", options.per_batch);
  options.keys = node.read<std::vector<std::string>>("keys", options.keys);
  options.with_inputs = node.read<bool>("with_inputs", options.with_inputs);
  options.class_key = node.read<std::string>("class_key", options.class_key);
  node.reject_unknown();
  return std::make_unique<PredictionWriterHook>(options);
}

}  // namespace

void register_custom_hook_types() {
  register_hook("EMAHook", ema);
  register_hook("EarlyStoppingHook", early_stopping);
  register_hook("EmptyCacheHook", empty_cache);
  register_hook("SyncBuffersHook", sync_buffers);
  register_hook("NaNGuardHook", nan_guard);
  register_hook("ProfilerHook", profiler);
  register_hook("PredictionWriterHook", prediction_writer);
}

}  // namespace duet
