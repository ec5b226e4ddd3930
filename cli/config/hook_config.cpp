#include <algorithm>
#include <map>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "core/hook.h"
#include "core/trainer.h"
#include "hooks/default_hooks.h"

namespace duet {

const std::string& default_hook_type(const std::string& key) {
  static const std::map<std::string, std::string> kTypes = {
      {"runtime_info", "RuntimeInfoHook"},       {"nan_guard", "NaNGuardHook"},          {"timer", "IterTimerHook"},
      {"sampler_seed", "DistSamplerSeedHook"},   {"visualization", "VisualizationHook"}, {"logger", "LoggerHook"},
      {"param_scheduler", "ParamSchedulerHook"}, {"checkpoint", "CheckpointHook"}};
  static const std::string kNone;
  const auto found = kTypes.find(key);
  return found != kTypes.end() ? found->second : kNone;
}

std::string HookConfig::type() const { return node.find<std::string>("type").value_or(default_hook_type(key)); }

namespace {

// The built-in keys, then the others.
std::vector<std::string> all_keys(const ConfigNode& default_hooks) {
  std::vector<std::string> keys = default_hook_keys();
  for (const std::string& key : default_hooks.keys()) {
    if (default_hook_type(key).empty()) keys.push_back(key);
  }
  return keys;
}

void check_further_key(const ConfigNode& hook, const std::string& key, std::vector<std::string> others) {
  // Null removes a base's hook, which a resolved config no longer holds; a misspelt key removes none.
  std::erase(others, key);
  if (hook.has("type") || (hook.is_null() && misspelling_of(key, others).empty())) return;
  throw ConfigError(c10::str("[Config] ", hook.origin(), ": unknown key '", key, "' in default_hooks; ",
                             known_and_nearest(key, others), " A hook under a key of its own needs a type."));
}

// Schedules would be without effect, and nothing would say so. A user's type in the place of the default one may drive
// them.
void check_schedules_have_a_hook(const ConfigNode& root, const std::vector<HookConfig>& hooks) {
  if (root.child("param_scheduler").is_empty()) return;
  std::string in_its_place;
  for (const HookConfig& hook : hooks) {
    if (hook.type() == "ParamSchedulerHook") return;
    if (hook.key == "param_scheduler") in_its_place = hook.type();
  }
  if (!in_its_place.empty() && !is_built_in("hook", in_its_place)) return;
  root.child("default_hooks")
      .fail("param_scheduler",
            c10::str("is ", in_its_place.empty() ? "null" : "of type " + in_its_place,
                     ", which would leave the schedules of param_scheduler without effect; remove one, or add a "
                     "ParamSchedulerHook"));
}

}  // namespace

std::vector<HookConfig> read_hooks(const ConfigNode& root) {
  std::vector<HookConfig> hooks;
  const ConfigNode default_hooks = root.child("default_hooks");
  for (const std::string& key : all_keys(default_hooks)) {
    const ConfigNode hook = default_hooks.child(key);
    if (default_hook_type(key).empty()) {
      check_further_key(hook, key, all_keys(default_hooks));
    } else if (!hook.is_null()) {
      hook.keys();  // a map, or nothing at all
    }
    hook.check_later();
    if (!hook.is_null()) hooks.push_back({hook, key});
  }
  for (const ConfigNode& hook : root.list("custom_hooks")) {
    if (hook.is_null()) continue;
    // Takes the place of the default one, unless that has settings of its own.
    const auto is_plain_guard = [](const HookConfig& one) { return one.key == "nan_guard" && one.node.is_empty(); };
    if (hook.need<std::string>("type") == "NaNGuardHook") std::erase_if(hooks, is_plain_guard);
    hook.check_later();
    hooks.push_back({hook, ""});
  }
  check_schedules_have_a_hook(root, hooks);
  return hooks;
}

void check_builtin_hooks(const std::vector<HookConfig>& hooks, const std::vector<std::string>& metrics) {
  const HookList none;
  HookContext context{none};
  context.steps_per_epoch = 1;  // not known yet
  context.metrics = metrics;
  for (const HookConfig& hook : hooks) {
    if (is_built_in("hook", hook.type())) make_hook(hook.node, context, default_hook_type(hook.key));
  }
}

void add_hooks(const std::vector<HookConfig>& hooks, const HookContext& context, BaseTrainer& trainer) {
  for (const HookConfig& hook : hooks) {
    hook.node.located([&] {
      ConfiguredHook made = make_hook(hook.node, context, default_hook_type(hook.key));
      if (hook.key.empty()) {
        trainer.add_hook(std::move(made.hook), made.priority);
      } else {
        register_default_hook(trainer, hook.key, std::move(made.hook), made.priority);
      }
    });
  }
}

}  // namespace duet
