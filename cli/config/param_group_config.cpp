#include "cli/config/param_group_config.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/detail/nearest.h"
#include "optim/groups/layer_decay.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <vector>

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
  ParamwiseOptions options;
  const ConfigNode custom_keys = node.child("custom_keys");
  for (const std::string& key : custom_keys.keys()) options.custom_keys[key] = read_custom_key(custom_keys.child(key));
  options.norm_decay_mult = read_multiplier(node, "norm_decay_mult");
  options.bias_lr_mult = read_multiplier(node, "bias_lr_mult");
  options.bias_decay_mult = read_multiplier(node, "bias_decay_mult");
  options.dwconv_decay_mult = read_multiplier(node, "dwconv_decay_mult");
  options.flat_decay_mult = read_multiplier(node, "flat_decay_mult");
  options.dcn_offset_lr_mult = read_multiplier(node, "dcn_offset_lr_mult");
  options.bypass_duplicate = node.read<bool>("bypass_duplicate", options.bypass_duplicate);
  options.compose = node.read<bool>("compose", options.compose);
  node.located([&] { options.validate(); });
  return located_at(node, options, paramwise_groups);
}

ParamGroupsFn layer_decay_constructor(const ConfigNode& node) {
  LayerDecayOptions options;
  options.num_layers = node.read_int("num_layers", options.num_layers, 0, 1 << 20);
  options.decay_rate = node.need<double>("decay_rate");
  options.decay_type = node.read_choice("decay_type", options.decay_type, {"layer_wise", "stage_wise"});
  options.strict_names = node.read<bool>("strict_names", options.strict_names);
  node.located([&] { options.validate(); });
  return located_at(node, options, layer_decay_groups);
}

std::map<std::string, OptimWrapperConstructor>& constructors() {
  static std::map<std::string, OptimWrapperConstructor> table = {
      {"DefaultOptimWrapperConstructor", default_constructor},
      {"LearningRateDecayOptimizerConstructor", layer_decay_constructor}};
  return table;
}

}  // namespace

void register_optim_wrapper_constructor(const std::string& name, OptimWrapperConstructor constructor) {
  require<ConfigError>(!name.empty() && constructor, "[Registry] found an optim_wrapper constructor '" + name +
                                                         "' without name or function, expected both");
  if (!constructors().emplace(name, std::move(constructor)).second) {
    throw ConfigError("[Registry] the constructor '" + name + "' is registered twice; choose another name");
  }
}

std::vector<std::string> registered_optim_wrapper_constructors() {
  std::vector<std::string> names;
  for (const auto& entry : constructors()) names.push_back(entry.first);
  return names;
}

ParamGroupsFn read_param_groups(const ConfigNode& optim_wrapper) {
  const auto name = optim_wrapper.read<std::string>("constructor", "DefaultOptimWrapperConstructor");
  optim_wrapper.note_kind("constructor", join(registered_optim_wrapper_constructors()));
  const auto found = constructors().find(name);
  if (found == constructors().end()) {
    optim_wrapper.fail_value("constructor",
                             "a registered one; " + known_and_nearest(name, registered_optim_wrapper_constructors()));
  }
  return found->second(optim_wrapper.child("paramwise_cfg"));
}

}  // namespace duet
