#pragma once

#include <string>
#include <vector>
#include "cli/config/config.h"

namespace duet {

class BaseTrainer;
struct HookContext;

// One hook of `default_hooks` or `custom_hooks`, not yet with its options.
struct HookConfig {
  ConfigNode node;
  std::string key;  // of default_hooks; empty in custom_hooks

  std::string type() const;  // what the node says, else what stands under the key
};

// Both lists, without the null ones, in the order in which they are added. Throws ConfigError for a key of
// default_hooks that is no built-in one and has no type. Everything else is checked when the hooks are built.
std::vector<HookConfig> read_hooks(const ConfigNode& root);

// Reads the options of duet's own hooks, so that a mistake is found before models and data are built. `metrics`: what a
// validation reports.
void check_builtin_hooks(const std::vector<HookConfig>& hooks, const std::vector<std::string>& metrics);

// Builds them and adds them to `trainer`, `context.hooks` being its list.
void add_hooks(const std::vector<HookConfig>& hooks, const HookContext& context, BaseTrainer& trainer);

// What stands under a built-in key of default_hooks that names no type; empty for other keys.
const std::string& default_hook_type(const std::string& key);

}  // namespace duet
