#include "hooks/default_hooks.h"
#include <algorithm>
#include <functional>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/param_scheduler_hook.h"
#include "core/trainer.h"
#include "hooks/detail/run_info_hooks.h"

namespace duet {

namespace {

using Options = DefaultHooksOptions;

struct BuiltIn {
  std::string key;
  std::function<std::unique_ptr<Hook>(const Options&)> make;
};

class DefaultNaNGuardHook : public NaNGuardHook {
 public:
  using NaNGuardHook::NaNGuardHook;
  bool gives_way() const override { return true; }
};

template <class H, class... Arguments>
std::unique_ptr<Hook> make_hook(Arguments&&... arguments) {
  return as_hook(std::make_unique<H>(std::forward<Arguments>(arguments)...));
}

std::unique_ptr<Hook> make_checkpoint_hook(const Options& options) {
  CheckpointHookOptions checkpoint = options.checkpoint;
  checkpoint.need_work_dir = false;
  return make_hook<CheckpointHook>(checkpoint);
}

const std::vector<BuiltIn>& built_in() {
  static const std::vector<BuiltIn> kHooks = {
      {"runtime_info", [](const Options&) { return make_hook<RuntimeInfoHook>(); }},
      {"nan_guard", [](const Options& o) { return make_hook<DefaultNaNGuardHook>(o.nan_guard); }},
      {"timer", [](const Options&) { return make_hook<IterTimerHook>(); }},
      {"sampler_seed", [](const Options&) { return make_hook<DistSamplerSeedHook>(); }},
      {"visualization", [](const Options& o) { return make_hook<VisualizationHook>(o.visualization); }},
      {"logger", [](const Options& o) { return make_hook<LoggerHook>(o.logger); }},
      {"param_scheduler", [](const Options&) { return make_hook<ParamSchedulerHook>(std::vector<Schedule>()); }},
      {"checkpoint", make_checkpoint_hook},
  };
  return kHooks;
}

}  // namespace

const std::vector<std::string>& default_hook_keys() {
  static const auto kKeys = [] {
    std::vector<std::string> keys;
    for (const BuiltIn& hook : built_in()) keys.push_back(hook.key);
    return keys;
  }();
  return kKeys;
}

std::vector<HookOverrides::Entry>::iterator HookOverrides::find(const std::string& key) {
  return std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) { return entry.key == key; });
}

HookOverrides& HookOverrides::put(const std::string& key, std::unique_ptr<Hook> hook, std::optional<int> priority) {
  auto place = find(key);
  if (place == entries_.end()) place = entries_.emplace(place);
  *place = {key, std::move(hook), priority};
  return *this;
}

void register_default_hook(BaseTrainer& trainer, const std::string& key, std::unique_ptr<Hook> hook,
                           std::optional<int> priority) {
  require<ConfigError>(hook != nullptr,
                       "[DefaultHooks] found no hook for '" + key + "', expected one; give one, or leave it out");
  if (priority && *priority != hook->priority() && std::ranges::count(default_hook_keys(), key) > 0) {
    log_warning(c10::str("the default hook '", hook->name(), "' (", key, ") has priority ", priority_text(*priority),
                         " instead of ", priority_text(hook->priority()),
                         ": the other default hooks count on its place; `duet explain` shows the order"));
  }
  trainer.add_hook(std::move(hook), priority);
}

void register_default_hooks(BaseTrainer& trainer, const DefaultHooksOptions& options, HookOverrides overrides) {
  for (const BuiltIn& hook : built_in()) {
    const auto other = overrides.find(hook.key);
    if (other == overrides.entries_.end()) {
      // The trainer has one already if it has schedules.
      if (hook.key == "param_scheduler" && trainer.hooks().find(hook.key) != nullptr) continue;
      register_default_hook(trainer, hook.key, hook.make(options));
      continue;
    }
    require<ConfigError>(hook.key != "param_scheduler" || trainer.hooks().find(hook.key) == nullptr,
                         "[DefaultHooks] found a change of param_scheduler beside TrainerOptions::schedules, whose "
                         "hook it does not replace; leave out one of them");
    if (other->hook != nullptr) register_default_hook(trainer, hook.key, std::move(other->hook), other->priority);
    overrides.entries_.erase(other);
  }
  for (HookOverrides::Entry& entry : overrides.entries_) {
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
