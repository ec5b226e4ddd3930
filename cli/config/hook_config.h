#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "cli/config/config_options.h"
#include "cli/registry.h"

namespace duet {

class BaseTrainer;

// `default_hooks` and `custom_hooks` of a config: which hooks, not yet with what options.
struct HookLists {
  ConfigNode default_hooks;
  std::vector<ConfigNode> custom_hooks;  // null ones are left out
};

// Reads both. Throws ConfigError for a key of default_hooks that is no built-in one and has no type. Everything else is
// checked when the hooks are built.
HookLists read_hook_lists(const ConfigNode& root);

// Reads the options of duet's own hooks, so that a mistake is found before models and data are built. `metrics`: what a
// validation reports.
void check_builtin_hooks(const HookLists& lists, const std::vector<std::string>& metrics);

// Build the hooks of either list and add them to `trainer`, `context.hooks` being its list.
void add_default_hooks(const HookLists& lists, const HookContext& context, BaseTrainer& trainer);
void add_custom_hooks(const HookLists& lists, const HookContext& context, BaseTrainer& trainer);

// Every hook of duet by its type name; does nothing the second time. In three parts: those of default_hooks without the
// logger, the logger, and the others.
void register_builtin_hooks();
void register_default_hook_types();
void register_logger_hook_type();
void register_custom_hook_types();

// What stands under a built-in key of default_hooks that names no type; empty for other keys.
const std::string& default_hook_type(const std::string& key);

// What the factories share.

// The key `priority`: a number from 0 to 100, or VERY_HIGH, NORMAL and the like.
std::optional<int> read_priority(const ConfigNode& node);
// The keys `interval` and `by_epoch`, in steps: with by_epoch it counts epochs.
int64_t read_interval(const ConfigNode& node, const HookContext& context, int64_t fallback, int64_t min);
// Throws ConfigError if no validation reports `metric`; warns if there is none.
void check_metric(const ConfigNode& node, const std::string& key, const std::string& metric,
                  const HookContext& context);

template <class H>
std::unique_ptr<H> without_options(ConfigNode& node, HookContext&) {
  node.reject_unknown();
  return std::make_unique<H>();
}

template <class H, Described Options>
std::unique_ptr<H> with_options(ConfigNode& node, HookContext&) {
  const auto options = read_options<Options>(node);
  node.reject_unknown();
  return std::make_unique<H>(options);
}

}  // namespace duet
