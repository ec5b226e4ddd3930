#include "cli/catalog.h"
#include <algorithm>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "core/hook.h"
#include "hooks/default_hooks.h"
#include "optim/schedules/detail/schedule_rules.h"

namespace duet {

namespace {

using Keys = std::vector<ConfigKey>;

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
  add(keys, keys_of_any(options_of("schedule", type)));
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
  keys.push_back(key(optimizer + ".type", join(registered("optimizer")), "the optimizer", "AdamW"));
  add(keys, keys_of<AdamW>(optimizer));
  keys.push_back(key("optim_wrapper.clip_grad.type", "norm, value, adaptive", "what is clipped", "norm"));
  add(keys, keys_of<ClipNorm>("optim_wrapper.clip_grad"));
  add(keys, keys_of<ClipValue>("optim_wrapper.clip_grad"));
  add(keys, keys_of<ClipAdaptive>("optim_wrapper.clip_grad"));
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
  std::vector<TypeKind> kinds = {{"model", "model"},
                                 {"dataset", "data.train"},
                                 {"source", "data.train"},
                                 {"sampler", "data.train.sampler"},
                                 {"loader", "data.train.loader"},
                                 {"sink", "default_hooks.logger.sinks"},
                                 {"transform", "data.train.transforms"},
                                 {"metric", "evaluator"},
                                 {"hook", "custom_hooks"},
                                 {"optimizer", "optim_wrapper.optimizer"},
                                 {"constructor", "optim_wrapper.constructor"},
                                 {"schedule", "param_scheduler"}};
  for (TypeKind& kind : kinds) kind.types = registered(kind.name);
  TypeKind& schedules = kinds.back();
  const std::vector<std::string> ours = builtin_schedules(false);
  schedules.types.insert(schedules.types.begin(), ours.begin(), ours.end());
  schedules.other_spellings = builtin_schedules();
  std::erase_if(schedules.other_spellings,
                [&](const std::string& name) { return std::find(ours.begin(), ours.end(), name) != ours.end(); });
  std::erase_if(kinds, [](const TypeKind& kind) { return kind.types.empty(); });  // those that only programs add to
  return kinds;
}

Keys keys_of_type(const TypeKind& kind, const std::string& type) {
  if (kind.name == "schedule") return keys_of_schedule(type);
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
    if (std::string(part) == "val" || std::string(part) == "test") {
      keys.push_back(key(std::string("data.") + part, "map, or a map of such maps by name",
                         "one dataset, or several by name, each evaluated in turn with results name/metric: {clean: "
                         "{type: FashionMnist}, noisy: {type: FashionScenes}}"));
    }
    add(keys, keys_of(std::string("data.") + part, data));
    if (data.shuffle) continue;
    for (const std::string& key : keys_of_drawing())
      std::erase_if(keys, [&](const ConfigKey& at) { return at.path == c10::str("data.", part, ".", key); });
  }
  add(keys, keys_of<LoopOptions>("trainer"));
  keys.push_back(key("auto_scale_lr.enable", "true/false",
                     "multiplies learning rates by samples of a step / base_batch_size", "false"));
  keys.push_back(key("auto_scale_lr.base_batch_size", "integer",
                     "samples of a step, over all processes and micro-batches, that the learning rates are meant for"));
  keys.back().required = true;
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

std::vector<std::pair<std::string, Keys>> config_sections() {
  std::vector<std::pair<std::string, Keys>> sections(1);
  for (const ConfigKey& key : keys_of_config()) {
    const std::size_t dot = key.path.find('.');
    const std::string name = dot == std::string::npos ? "" : key.path.substr(0, dot);
    auto found = std::ranges::find(sections, name, &std::pair<std::string, Keys>::first);
    if (found == sections.end()) found = sections.insert(found, {name, {}});
    found->second.push_back(key);
  }
  return sections;
}

}  // namespace duet
