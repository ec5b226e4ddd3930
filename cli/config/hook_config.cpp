#include "cli/config/hook_config.h"
#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "cli/config/metric_config.h"
#include "core/hook.h"
#include "core/trainer.h"
#include "hooks/default_hooks.h"

namespace duet {

const std::string& default_hook_type(const std::string& key) {
  static const std::map<std::string, std::string> kTypes = {
      {"runtime_info", "RuntimeInfoHook"},    {"timer", "IterTimerHook"}, {"sampler_seed", "DistSamplerSeedHook"},
      {"visualization", "VisualizationHook"}, {"logger", "LoggerHook"},   {"param_scheduler", "ParamSchedulerHook"},
      {"checkpoint", "CheckpointHook"}};
  static const std::string kNone;
  const auto found = kTypes.find(key);
  return found != kTypes.end() ? found->second : kNone;
}

namespace {

bool has_type(const ConfigNode& node) {
  if (node.kind() != ConfigNode::Kind::kMap) return false;
  const std::vector<std::string> keys = node.keys();
  return std::find(keys.begin(), keys.end(), "type") != keys.end();
}

// Keys beside the built-in ones.
std::vector<std::string> further_keys(const ConfigNode& default_hooks) {
  std::vector<std::string> keys = default_hooks.keys();
  std::erase_if(keys, [](const std::string& key) { return !default_hook_type(key).empty(); });
  return keys;
}

// The built-in keys, then the others.
std::vector<std::string> all_keys(const ConfigNode& default_hooks) {
  std::vector<std::string> keys = default_hook_keys();
  for (const std::string& key : further_keys(default_hooks)) keys.push_back(key);
  return keys;
}

void check_further_key(const ConfigNode& default_hooks, const std::string& key) {
  const ConfigNode hook = default_hooks.child(key);
  hook.check_later();
  // Null removes a base's hook, which a resolved config no longer holds; a misspelt key removes none.
  std::vector<std::string> others = all_keys(default_hooks);
  std::erase(others, key);
  if (has_type(hook) || (hook.is_null() && misspelling_of(key, others).empty())) return;
  throw ConfigError(c10::str("[Config] ", hook.origin(), ": unknown key '", key, "' in default_hooks; ",
                             known_and_nearest(key, others), " A hook under a key of its own needs a type."));
}

// Registers them; types that were there before are a user's.
const std::set<std::string>& builtin_types() {
  static const std::set<std::string> kTypes = [] {
    const std::vector<std::string> before = registered("hook");
    register_default_hook_types();
    register_logger_hook_type();
    register_custom_hook_types();
    std::set<std::string> types;
    for (const std::string& type : registered("hook")) types.insert(type);
    for (const std::string& type : before) types.erase(type);
    return types;
  }();
  return kTypes;
}

void check_builtin_hook(const ConfigNode& node, const HookContext& context, const std::string& otherwise) {
  const std::string type = node.find<std::string>("type").value_or(otherwise);
  if (builtin_types().count(type) == 0) return;
  make_hook(node, context, otherwise);
}

bool drives_schedules(const ConfigNode& hook, const std::string& otherwise) {
  return !hook.is_null() && hook.find<std::string>("type").value_or(otherwise) == "ParamSchedulerHook";
}

// Schedules would be without effect, and nothing would say so. A user's type in the place of the default one may drive
// them.
void check_schedules_have_a_hook(const ConfigNode& root, const HookLists& lists) {
  if (root.child("param_scheduler").is_empty()) return;
  for (const std::string& key : all_keys(lists.default_hooks)) {
    if (drives_schedules(lists.default_hooks.child(key), default_hook_type(key))) return;
  }
  for (const ConfigNode& hook : lists.custom_hooks) {
    if (drives_schedules(hook, "")) return;
  }
  const ConfigNode place = lists.default_hooks.child("param_scheduler");
  const std::string type = place.is_null() ? "" : place.need<std::string>("type");
  if (!type.empty() && builtin_types().count(type) == 0) return;
  lists.default_hooks.fail(
      "param_scheduler",
      c10::str("is ", type.empty() ? "null" : "of type " + type,
               ", which would leave the schedules of param_scheduler without effect; remove one, or add a "
               "ParamSchedulerHook"));
}

}  // namespace

HookLists read_hook_lists(const ConfigNode& root) {
  HookLists lists;
  lists.default_hooks = root.child("default_hooks");
  const ConfigNode& hooks = lists.default_hooks;
  for (const std::string& key : default_hook_keys()) {
    const ConfigNode hook = hooks.child(key);
    if (!hook.is_null()) hook.keys();  // a map, or nothing at all
    hook.check_later();
  }
  for (const std::string& key : further_keys(hooks)) check_further_key(hooks, key);
  for (const ConfigNode& hook : root.list("custom_hooks")) {
    if (hook.is_null()) continue;
    hook.need<std::string>("type");
    hook.check_later();
    lists.custom_hooks.push_back(hook);
  }
  check_schedules_have_a_hook(root, lists);
  return lists;
}

void check_builtin_hooks(const HookLists& lists, const std::vector<std::string>& metrics) {
  const HookList none;
  HookContext context{none};
  context.steps_per_epoch = 1;  // not known yet
  context.metrics = metrics;
  context.validates = true;  // else it would be said twice that there is no validation
  for (const std::string& key : all_keys(lists.default_hooks)) {
    const ConfigNode node = lists.default_hooks.child(key);
    if (!node.is_null()) check_builtin_hook(node, context, default_hook_type(key));
  }
  for (const ConfigNode& node : lists.custom_hooks) check_builtin_hook(node, context, "");
}

void add_default_hooks(const HookLists& lists, const HookContext& context, BaseTrainer& trainer) {
  for (const std::string& key : all_keys(lists.default_hooks)) {
    const ConfigNode node = lists.default_hooks.child(key);
    if (node.is_null()) continue;
    node.located([&] {
      ConfiguredHook made = make_hook(node, context, default_hook_type(key));
      register_default_hook(trainer, key, std::move(made.hook), made.priority);
    });
  }
}

void add_custom_hooks(const HookLists& lists, const HookContext& context, BaseTrainer& trainer) {
  for (const ConfigNode& node : lists.custom_hooks) {
    node.located([&] {
      ConfiguredHook made = make_hook(node, context);
      trainer.add_hook(std::move(made.hook), made.priority);
    });
  }
}

std::optional<int> read_priority(const ConfigNode& node) {
  const std::optional<std::string> text = node.find<std::string>("priority");
  if (!text) return std::nullopt;
  if (const std::optional<int> priority = parse_priority(*text)) return priority;
  node.fail_value("priority", "a number from 0 to 100 or a name; " + known_and_nearest(*text, priority_names()));
}

int64_t read_interval(const ConfigNode& node, const HookContext& context, int64_t fallback, int64_t min) {
  const int64_t interval = node.read_int("interval", fallback, min, std::numeric_limits<int>::max());
  if (!node.read<bool>("by_epoch", false)) return interval;
  if (context.steps_per_epoch > 0) return interval * context.steps_per_epoch;
  node.fail("by_epoch", "is true, but the data has no epochs; count in steps with by_epoch: false");
}

void check_metric(const ConfigNode& node, const std::string& key, const std::string& metric,
                  const HookContext& context) {
  if (context.metrics.empty()) return;  // nothing is validated with these hooks
  require_metric(node, key, metric, context.metrics);
  if (!context.validates) log_warning(c10::str(node.path(), ".", key, " has no effect without data.val"));
}

void register_builtin_hooks() { builtin_types(); }

}  // namespace duet
