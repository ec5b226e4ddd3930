#include "cli/catalog.h"

#include "cli/config/optim_config.h"
#include "cli/config/param_group_config.h"
#include "cli/config/run_config.h"
#include "cli/config/schedule_config.h"
#include "cli/optim_registry.h"
#include "cli/registry.h"
#include "data/dataset.h"
#include "core/hook_list.h"
#include "metrics/metric.h"
#include "core/task.h"

#include <algorithm>
#include <functional>
#include <utility>

namespace duet {

namespace {

using Names = std::vector<std::string>;
using Keys = std::vector<ConfigKey>;

// What was read when `reader` ended, in whichever way.
Keys keys_read(const ConfigNode& probe, const std::function<void(const ConfigNode&)>& reader) {
  try {
    reader(probe);
  } catch (const KeysRead&) {
    return probe.schema();
  } catch (const std::exception&) {
    // A factory that needs more than a probe holds; it has read most of its keys by then.
    return probe.schema();
  }
  return probe.schema();
}

bool is_below(const ConfigKey& key, const std::string& section) { return key.path.rfind(section + ".", 0) == 0; }

// Those below `section`, from there.
Keys below(const Keys& keys, const std::string& section) {
  Keys found;
  for (ConfigKey key : keys) {
    if (!is_below(key, section)) continue;
    key.path.erase(0, section.size() + 1);
    found.push_back(key);
  }
  return found;
}

Names with(Names first, const Names& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

void build(const std::string& kind, const ConfigNode& probe) {
  const HookList no_hooks;
  if (kind == "model") make_model(probe, {});
  if (kind == "dataset") make_dataset(probe);
  if (kind == "metric") make_metric(probe);
  if (kind == "hook") make_hook(probe, HookContext{no_hooks});
  if (kind == "optimizer") read_optimizer(probe);
}

// Further sections and the other forms of a value: one reading sees one of them.
const Names& probe_texts() {
  static const Names kTexts = {
      "model: {}\ndata: {train: {}, val: {}, test: {}, predict: {}}\n"
      "optim_wrapper: {optimizer: {}, clip_grad: {}, paramwise_cfg: {}}\n",
      "model: {}\nload_from: {path: x}\noptim_wrapper: {clip_grad: {clip_value: 1}, loss_scale: {}}\n",
      "model: {}\noptim_wrapper: {type: AmpOptimWrapper}\n"};
  return kTexts;
}

// Adds what another probe has shown, behind the others of its section. Only the first shows what every config needs.
void add_key(Keys& keys, ConfigKey key, bool is_first) {
  key.required = key.required && is_first;
  const auto same = std::find_if(keys.begin(), keys.end(), [&](const ConfigKey& known) { return known.path == key.path; });
  if (same != keys.end()) {
    if (same->type == "map") *same = key;
    return;
  }
  auto place = keys.end();
  std::string section = key.path;
  while (place == keys.end() && section.find('.') != std::string::npos) {
    section.erase(section.rfind('.'));
    const auto last = std::find_if(keys.rbegin(), keys.rend(), [&](const ConfigKey& k) { return is_below(k, section) || k.path == section; });
    if (last != keys.rend()) place = last.base();
  }
  keys.insert(place, key);
}

// A section without keys in one probe may have some in another.
void drop_sections(Keys& keys) {
  const Keys all = keys;
  std::erase_if(keys, [&](const ConfigKey& key) {
    return key.type == "map" && std::any_of(all.begin(), all.end(), [&](const ConfigKey& other) { return is_below(other, key.path); });
  });
}

}  // namespace

std::vector<TypeKind> type_kinds() {
  return {{"model", "model", registered("model")},
          {"dataset", "data.train", registered("dataset")},
          {"metric", "evaluator", registered("metric")},
          {"hook", "custom_hooks", registered("hook")},
          {"optimizer", "optim_wrapper.optimizer", with(builtin_optimizers(), registered_optimizers())},
          {"constructor", "optim_wrapper.constructor", registered_optim_wrapper_constructors()},
          {"schedule", "param_scheduler", with(builtin_schedules(false), registered_schedules())}};
}

Names other_names(const TypeKind& kind) {
  Names names;
  if (kind.name != "schedule") return names;
  for (const std::string& name : builtin_schedules()) {
    if (std::find(kind.types.begin(), kind.types.end(), name) == kind.types.end()) names.push_back(name);
  }
  return names;
}

Keys keys_of_type(const TypeKind& kind, const std::string& type) {
  Keys keys;
  if (kind.name == "constructor") {
    keys = keys_read(ConfigNode::probe("constructor: " + type + "\nparamwise_cfg: {}\n"), [](const ConfigNode& probe) { read_param_groups(probe); });
    return below(keys, "paramwise_cfg");
  }
  if (kind.name == "schedule") {
    keys = keys_read(ConfigNode::probe("param_scheduler: {type: " + type + "}\n"), [](const ConfigNode& probe) { read_schedules(probe); });
    keys = below(keys, "param_scheduler");
  } else {
    keys = keys_read(ConfigNode::probe("type: " + type + "\n"), [&](const ConfigNode& probe) { build(kind.name, probe); });
  }
  std::erase_if(keys, [](const ConfigKey& key) { return key.path == "type"; });
  return keys;
}

Keys keys_of_config() {
  Keys keys;
  for (const std::string& text : probe_texts()) {
    const auto read = [](const ConfigNode& probe) { parse_run_config(probe, "<name of the file>"); };
    const bool is_first = keys.empty();
    for (const ConfigKey& key : keys_read(ConfigNode::probe(text), read)) add_key(keys, key, is_first);
  }
  drop_sections(keys);
  return keys;
}

}  // namespace duet
