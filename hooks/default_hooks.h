#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "../core/hook.h"
#include "checkpoint_hook.h"
#include "logger_hook.h"
#include "nan_guard_hook.h"
#include "prediction_hooks.h"

namespace duet {

class BaseTrainer;

// What the built-in hooks are made with.
struct DefaultHooksOptions {
  NaNGuardHookOptions nan_guard{};
  VisualizationHookOptions visualization{};
  LoggerHookOptions logger{};
  CheckpointHookOptions checkpoint{};  // without a work_dir it saves nothing
};

// Changes to the list of default hooks, by key.
class HookOverrides {
 public:
  // Puts `hook` in the place of the built-in one, or adds it if `key` is new; null removes the built-in one.
  template <class H>
  HookOverrides& set(const std::string& key, std::unique_ptr<H> hook, std::optional<int> priority = std::nullopt) {
    return put(key, as_hook(std::move(hook)), priority);
  }
  HookOverrides& remove(const std::string& key) { return put(key, nullptr, std::nullopt); }

 private:
  friend void register_default_hooks(BaseTrainer& trainer, const DefaultHooksOptions& options, HookOverrides overrides);
  struct Entry {
    std::string key;
    std::unique_ptr<Hook> hook;
    std::optional<int> priority;
  };
  std::vector<Entry>::iterator find(const std::string& key);
  HookOverrides& put(const std::string& key, std::unique_ptr<Hook> hook, std::optional<int> priority);

  std::vector<Entry> entries_;  // in the order they were given in, each key once
};

// Keys of the built-in hooks, in the order they are added in: runtime_info (10), nan_guard (40), timer (50),
// sampler_seed (50), visualization (50), logger (60), param_scheduler (70), checkpoint (90). So the logger reads the
// times and the rate of the finished step, then the rate of the next one is set, and a checkpoint holds all of it. With
// TrainerOptions::schedules the trainer itself has added param_scheduler, before all others. The schedules are those of
// TrainerOptions::schedules. A NaNGuardHook that is added later takes the place of the built-in one.
const std::vector<std::string>& default_hook_keys();

// Adds the hooks that nearly every run wants, with `overrides` over the built-in ones. Throws ConfigError for options
// out of range, and for the removal of a key that is not there.
void register_default_hooks(BaseTrainer& trainer, const DefaultHooksOptions& options = {},
                            HookOverrides overrides = {});

// Adds one of them. Whoever gives a built-in one another priority is warned once: the others count on its place.
void register_default_hook(BaseTrainer& trainer, const std::string& key, std::unique_ptr<Hook> hook,
                           std::optional<int> priority = std::nullopt);

// Adds further hooks, in this order; null ones are skipped.
void register_custom_hooks(BaseTrainer& trainer, std::vector<std::unique_ptr<Hook>> hooks);

}  // namespace duet
