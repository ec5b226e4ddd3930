#include "cli/config/param_group_config.h"
#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "cli/config/config_options.h"
#include "optim/groups/param_group.h"

namespace duet {

namespace {

constexpr double kHuge = std::numeric_limits<double>::max();

std::optional<double> read_multiplier(const ConfigNode& node, const std::string& key) {
  if (!node.find<double>(key)) return std::nullopt;
  return node.read_number(key, 0, 0, kHuge);
}

// Besides the two multipliers any number of the optimizer, as it is to be.
CustomKey read_custom_key(const ConfigNode& node) {
  CustomKey custom;
  custom.lr_mult = read_multiplier(node, "lr_mult").value_or(custom.lr_mult);
  custom.decay_mult = read_multiplier(node, "decay_mult").value_or(custom.decay_mult);
  for (const std::string& key : node.keys()) {
    if (key == "lr_mult" || key == "decay_mult") continue;
    if (key == "betas") {
      const auto betas = node.need<std::vector<double>>(key);
      if (betas.size() != 2) node.fail(key, c10::str("has ", betas.size(), " numbers, expected two"));
      custom.numbers["beta1"] = betas[0];
      custom.numbers["beta2"] = betas[1];
    } else {
      node.need<double>(key);
      custom.numbers[key] = node.read_number(key, 0, 0, kHuge);
    }
  }
  return custom;
}

// A mistake that only shows on the model is reported with the place of the options.
template <class Options>
ParamGroupsFn located_at(const ConfigNode& node, const Options& options,
                         ParamGroups (*make)(const ModelInfo&, const OptimizerOptions&, const Options&)) {
  return [node, options, make](const ModelInfo& model, const OptimizerOptions& optimizer) {
    ParamGroups groups;
    node.located([&] { groups = make(model, optimizer, options); });
    return groups;
  };
}

ParamGroupsFn default_constructor(const ConfigNode& node) {
  if (node.is_empty()) return {};
  auto options = read_options<ParamwiseOptions>(node);
  const ConfigNode custom_keys = node.child("custom_keys");
  for (const std::string& key : custom_keys.keys()) options.custom_keys[key] = read_custom_key(custom_keys.child(key));
  node.located([&] { options.validate(); });
  return located_at(node, options, paramwise_groups);
}

ParamGroupsFn layer_decay_constructor(const ConfigNode& node) {
  const auto options = read_options<LayerDecayOptions>(node);
  node.located([&] { options.validate(); });
  return located_at(node, options, layer_decay_groups);
}

struct Entry {
  OptimWrapperConstructor make;
  std::optional<AnyOptions> options;
};

std::map<std::string, Entry>& constructors() {
  static std::map<std::string, Entry> table = {
      {"DefaultOptimWrapperConstructor", {default_constructor, AnyOptions(ParamwiseOptions{})}},
      {"LearningRateDecayOptimizerConstructor", {layer_decay_constructor, AnyOptions(LayerDecayOptions{})}}};
  return table;
}

}  // namespace

void register_optim_wrapper_constructor(const std::string& name, OptimWrapperConstructor constructor,
                                        std::optional<AnyOptions> options) {
  require<ConfigError>(!name.empty() && constructor, "[Registry] found an optim_wrapper constructor '" + name +
                                                         "' without name or function, expected both");
  if (!constructors().emplace(name, Entry{std::move(constructor), std::move(options)}).second) {
    throw ConfigError("[Registry] the constructor '" + name + "' is registered twice; choose another name");
  }
}

const AnyOptions* options_of_constructor(const std::string& name) {
  const auto found = constructors().find(name);
  return found == constructors().end() || !found->second.options ? nullptr : &*found->second.options;
}

std::vector<std::string> registered_optim_wrapper_constructors() {
  std::vector<std::string> names;
  for (const auto& entry : constructors()) names.push_back(entry.first);
  return names;
}

ParamGroupsFn read_param_groups(const ConfigNode& optim_wrapper) {
  const auto name = optim_wrapper.read<std::string>("constructor", "DefaultOptimWrapperConstructor");
  const auto found = constructors().find(name);
  if (found == constructors().end()) {
    optim_wrapper.fail_value("constructor",
                             "a registered one; " + known_and_nearest(name, registered_optim_wrapper_constructors()));
  }
  return found->second.make(optim_wrapper.child("paramwise_cfg"));
}

}  // namespace duet
