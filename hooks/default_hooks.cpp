#include "hooks/default_hooks.h"
#include <algorithm>
#include <functional>
#include <c10/util/StringUtil.h>
#include "base/detail/nearest.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/param_scheduler_hook.h"
#include "core/trainer.h"
#include "hooks/detail/dist_sampler_seed_hook.h"
#include "hooks/detail/iter_timer_hook.h"
#include "hooks/detail/runtime_info_hook.h"

namespace duet {

namespace {

struct BuiltIn {
  std::string key;
  std::function<std::unique_ptr<Hook>(const DefaultHooksOptions&)> make;
};

std::unique_ptr<Hook> make_checkpoint_hook(const DefaultHooksOptions& options) {
  CheckpointHookOptions checkpoint = options.checkpoint;
  checkpoint.need_work_dir = false;
  return as_hook(std::make_unique<CheckpointHook>(checkpoint));
}

const std::vector<BuiltIn>& built_in() {
  using Options = DefaultHooksOptions;
  static const std::vector<BuiltIn> kHooks = {
      {"runtime_info", [](const Options&) { return as_hook(std::make_unique<RuntimeInfoHook>()); }},
      {"timer", [](const Options&) { return as_hook(std::make_unique<IterTimerHook>()); }},
      {"sampler_seed", [](const Options&) { return as_hook(std::make_unique<DistSamplerSeedHook>()); }},
      {"visualization", [](const Options& o) { return as_hook(std::make_unique<VisualizationHook>(o.visualization)); }},
      {"logger", [](const Options& o) { return as_hook(std::make_unique<LoggerHook>(o.logger)); }},
      {"param_scheduler",
       [](const Options&) { return as_hook(std::make_unique<ParamSchedulerHook>(std::vector<Schedule>())); }},
      {"checkpoint", make_checkpoint_hook},
  };
  return kHooks;
}

}  // namespace

const std::vector<std::string>& default_hook_keys() {
  static const std::vector<std::string> kKeys = [] {
    std::vector<std::string> keys;
    for (const BuiltIn& hook : built_in()) keys.push_back(hook.key);
    return keys;
  }();
  return kKeys;
}

HookOverrides& HookOverrides::put(const std::string& key, std::unique_ptr<Hook> hook, std::optional<int> priority) {
  const auto same =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
  if (same != entries_.end()) {
    *same = {key, std::move(hook), priority};
  } else {
    entries_.push_back({key, std::move(hook), priority});
  }
  return *this;
}

void register_default_hook(BaseTrainer& trainer, const std::string& key, std::unique_ptr<Hook> hook,
                           std::optional<int> priority) {
  require<ConfigError>(hook != nullptr,
                       "[DefaultHooks] found no hook for '" + key + "', expected one; give one, or leave it out");
  const auto& keys = default_hook_keys();
  const bool moved =
      priority && *priority != hook->priority() && std::find(keys.begin(), keys.end(), key) != keys.end();
  const std::string change =
      moved ? c10::str("priority ", priority_text(*priority), " instead of ", priority_text(hook->priority())) : "";
  const std::string name = hook->name();
  trainer.add_hook(std::move(hook), priority);
  if (!moved) return;
  log_warning(c10::str("the default hook '", name, "' (", key, ") has ", change,
                       ": the other default hooks count on its place; `duet explain` shows the order"));
}

void register_default_hooks(BaseTrainer& trainer, const DefaultHooksOptions& options, HookOverrides overrides) {
  const auto take = [&](const std::string& key) -> std::optional<HookOverrides::Entry> {
    for (HookOverrides::Entry& entry : overrides.entries_) {
      if (entry.key == key)
        return HookOverrides::Entry{std::exchange(entry.key, ""), std::move(entry.hook), entry.priority};
    }
    return std::nullopt;
  };
  for (const BuiltIn& hook : built_in()) {
    std::optional<HookOverrides::Entry> other = take(hook.key);
    if (!other) {
      // The trainer has one already if it has schedules.
      if (hook.key == "param_scheduler" && trainer.hooks().find(hook.key) != nullptr) continue;
      register_default_hook(trainer, hook.key, hook.make(options));
    } else if (other->hook != nullptr) {
      register_default_hook(trainer, hook.key, std::move(other->hook), other->priority);
    }
  }
  for (HookOverrides::Entry& entry : overrides.entries_) {
    if (entry.key.empty()) continue;
    if (entry.hook == nullptr) {
      throw ConfigError("[DefaultHooks] found no hook '" + entry.key + "' to remove; " +
                        known_and_nearest(entry.key, default_hook_keys()));
    }
    trainer.add_hook(std::move(entry.hook), entry.priority);
  }
}

void register_custom_hooks(BaseTrainer& trainer, std::vector<std::unique_ptr<Hook>> hooks) {
  for (std::unique_ptr<Hook>& hook : hooks) {
    if (hook != nullptr) trainer.add_hook(std::move(hook));
  }
}

}  // namespace duet
