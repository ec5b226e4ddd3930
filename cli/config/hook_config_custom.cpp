#include <c10/util/StringUtil.h>
#include "cli/config/config_options.h"
#include "cli/config/hook_config.h"
#include "core/hook.h"
#include "hooks/early_stopping_hook.h"
#include "hooks/ema_hook.h"
#include "hooks/nan_guard_hook.h"
#include "hooks/prediction_hooks.h"
#include "hooks/profiler_hook.h"
#include "hooks/small_hooks.h"

namespace duet {

// Where config keys become the options of the hooks that a run asks for.

namespace {

std::string free_name(const std::string& wanted, const HookList& hooks) {
  std::string name = wanted;
  for (int number = 2; hooks.find(name) != nullptr; ++number) name = c10::str(wanted, "_", number);
  return name;
}

// With mmengine's keys. Without `name` the first of a run is called ema, further ones ema_2, ema_3, ...
std::unique_ptr<EMAHook> ema(ConfigNode& node, HookContext& context) {
  auto options = read_options<EMAHookOptions>(node);
  if (options.average.type == "MomentumAnnealingEMA") {
    options.average.gamma = node.read<int64_t>("gamma", options.average.gamma);
  }
  const std::optional<std::string> name = node.find<std::string>("name");
  options.name = name ? *name : free_name(options.name, context.hooks);
  node.reject_unknown();
  return std::make_unique<EMAHook>(options);
}

std::unique_ptr<EarlyStoppingHook> early_stopping(ConfigNode& node, HookContext& context) {
  const auto options = read_options<EarlyStoppingHookOptions>(node);
  node.reject_unknown();
  if (options.strict) check_metric(node, "monitor", options.monitor, context);
  return std::make_unique<EarlyStoppingHook>(options);
}

std::unique_ptr<ProfilerHook> profiler(ConfigNode& node, HookContext& context) {
  auto options = read_options<ProfilerHookOptions>(node);
  node.reject_unknown();
  if (context.scratch) options.folder.clear();
  return std::make_unique<ProfilerHook>(options);
}

std::unique_ptr<PredictionWriterHook> prediction_writer(ConfigNode& node, HookContext& context) {
  auto options = read_options<PredictionWriterHookOptions>(node);
  node.reject_unknown();
  if (context.scratch) options.folder.clear();
  if (!context.output.empty()) options.folder = context.output;
  return std::make_unique<PredictionWriterHook>(options);
}

}  // namespace

void register_custom_hook_types() {
  register_hook("EMAHook", ema, AnyOptions(EMAHookOptions()));
  register_hook("EarlyStoppingHook", early_stopping, AnyOptions(EarlyStoppingHookOptions()));
  register_hook("EmptyCacheHook", with_options<EmptyCacheHook, EmptyCacheHookOptions>,
                AnyOptions(EmptyCacheHookOptions()));
  register_hook("SyncBuffersHook", without_options<SyncBuffersHook>);
  register_hook("NaNGuardHook", with_options<NaNGuardHook, NaNGuardHookOptions>, AnyOptions(NaNGuardHookOptions()));
  register_hook("ProfilerHook", profiler, AnyOptions(ProfilerHookOptions()));
  register_hook("PredictionWriterHook", prediction_writer, AnyOptions(PredictionWriterHookOptions()));
}

}  // namespace duet
