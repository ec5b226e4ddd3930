#include "cli/catalog.h"
#include <algorithm>
#include <utility>
#include "base/detail/text.h"
#include "cli/config/hook_config.h"
#include "cli/config/optim_config.h"
#include "cli/config/param_group_config.h"
#include "cli/config/run_config.h"
#include "cli/config/schedule_config.h"
#include "cli/optim_registry.h"
#include "cli/registry.h"
#include "core/hook.h"
#include "hooks/default_hooks.h"
#include "optim/schedules/detail/schedule_rules.h"

namespace duet {

namespace {

using Names = std::vector<std::string>;
using Keys = std::vector<ConfigKey>;

Names with(Names first, const Names& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

void add(Keys& keys, const Keys& more) { keys.insert(keys.end(), more.begin(), more.end()); }

Keys keys_of_any(const AnyOptions* options, const std::string& section = "") {
  return options == nullptr ? Keys() : keys_of(options->fields(), options->data(), section);
}

const std::string& priority_text() {
  static const std::string kText = "0 to 100, or one of " + join(priority_names());
  return kText;
}

Keys keys_of_schedule(const std::string& type) {
  Keys keys = std::visit([](const auto& options) { return keys_of("", options); }, make_schedule(type));
  add(keys, keys_of_any(options_of_schedule(type)));
  return keys;
}

ConfigKey key(const std::string& path, const std::string& type, const std::string& meaning,
              const std::string& fallback = "") {
  return {path, type, "", fallback, meaning};
}

void add_optim_wrapper(Keys& keys) {
  const TrainerOptions trainer;
  add(keys, keys_of(optim_wrapper_fields(), &trainer, "optim_wrapper"));
  const std::string optimizer = "optim_wrapper.optimizer";
  keys.push_back(key(optimizer + ".type", join(with(OptimizerOptions::built_in_types(), registered_optimizers())),
                     "the optimizer", "AdamW"));
  add(keys, keys_of<AdamW>(optimizer));
  keys.push_back(key("optim_wrapper.clip_grad.type", "norm, value", "what is clipped", "norm"));
  add(keys, keys_of<ClipNorm>("optim_wrapper.clip_grad"));
  add(keys, keys_of<ClipValue>("optim_wrapper.clip_grad"));
  add(keys, keys_of<LossScaleOptions>("optim_wrapper.loss_scale"));
  add(keys, keys_of<ParamwiseOptions>("optim_wrapper.paramwise_cfg"));
}

void add_default_hooks(Keys& keys) {
  for (const std::string& name : default_hook_keys()) {
    const std::string section = "default_hooks." + name, type = default_hook_type(name);
    keys.push_back(key(section + ".type", "text", "another hook in its place", type));
    keys.push_back(key(section + ".priority", priority_text(), "its place among the hooks"));
    add(keys, keys_of_any(options_of("hook", type), section));
  }
}

}  // namespace

std::vector<TypeKind> type_kinds() {
  return {{"model", "model", registered("model")},
          {"dataset", "data.train", registered("dataset")},
          {"metric", "evaluator", registered("metric")},
          {"hook", "custom_hooks", registered("hook")},
          {"optimizer", "optim_wrapper.optimizer", with(OptimizerOptions::built_in_types(), registered_optimizers())},
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
  if (kind.name == "constructor") return keys_of_any(options_of_constructor(type));
  if (kind.name == "schedule") return keys_of_schedule(type);
  if (kind.name == "optimizer") {
    const Names& built_in = OptimizerOptions::built_in_types();
    if (std::find(built_in.begin(), built_in.end(), type) == built_in.end())
      return keys_of_any(options_of_optimizer(type));
    const OptimizerOptions options = OptimizerOptions::of_type(type);
    return keys_of(options.fields(), options.data());
  }
  Keys keys;
  if (kind.name == "hook") keys.push_back(key("priority", priority_text(), "its place among the hooks"));
  add(keys, keys_of_any(options_of(kind.name, type)));
  return keys;
}

Keys keys_of_config() {
  RunConfig config;
  config.work_dir = "runs/<name of the file>";
  Keys keys = keys_of("", config);
  keys.push_back(key("model.type", "text", "what is trained"));
  keys.back().required = true;
  keys.push_back(key("load_from", "path", "weights to start from; or a map"));
  add(keys, keys_of<LoadFromConfig>("load_from"));
  for (const char* part : {"train", "val", "test", "predict"}) {
    DataConfig data;
    data.shuffle = std::string(part) == "train";
    add(keys, keys_of(std::string("data.") + part, data));
  }
  add(keys, keys_of<LoopOptions>("trainer"));
  add_optim_wrapper(keys);
  keys.push_back(key("param_scheduler", "list", "schedules of the optimizer's numbers"));
  for (const char* name : {"evaluator", "val_evaluator", "test_evaluator"})
    keys.push_back(key(name, "list", "metrics"));
  add_default_hooks(keys);
  keys.push_back(key("custom_hooks", "list", "further hooks"));
  add(keys, keys_of<GraphOptions>("graph"));
  add(keys, keys_of<DistributedOptions>("distributed"));
  return keys;
}

}  // namespace duet
