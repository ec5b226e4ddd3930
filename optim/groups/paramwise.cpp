#include <algorithm>
#include <cmath>
#include <set>
#include <c10/util/StringUtil.h>
#include "base/detail/name_pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "optim/groups/detail/param_group_builder.h"
#include "optim/groups/param_group.h"

namespace duet {

namespace {

void check_multiplier(const std::string& field, double value) {
  if (value >= 0 && std::isfinite(value)) return;
  throw ConfigError(c10::str("[ParamwiseOptions] ", field, " is ", value, ", expected a finite number >= 0"));
}

// A parameter as the rules see it.
struct Subject {
  std::string full_name;  // "<layer>.<parameter>"
  std::string layer, name;
  ModuleKind kind = ModuleKind::kOther;
  bool in_deformable = false;  // its layer is a direct part of a deformable convolution
  bool flat = false;           // 1-d

  bool is_bias() const { return name == "bias"; }
};

class Rules {
 public:
  Rules(const ModelInfo& model, const ParamwiseOptions& options) : options_(options) {
    for (const ModuleInfo& module : model.modules()) kinds_.emplace(module.path, module.kind);
    for (const auto& entry : options.custom_keys) keys_.push_back(entry.first);
    // The map is in alphabetical order, which a stable sort keeps among equally long keys.
    std::stable_sort(keys_.begin(), keys_.end(), [](const auto& a, const auto& b) { return a.size() > b.size(); });
  }

  Subject subject(const std::string& parameter, const at::Tensor& tensor) const {
    Subject subject;
    subject.layer = dotted_parent(parameter);
    subject.name = parameter.substr(subject.layer.empty() ? 0 : subject.layer.size() + 1);
    subject.full_name = subject.layer + "." + subject.name;
    subject.kind = kind_of(subject.layer);
    subject.in_deformable =
        !subject.layer.empty() && kind_of(dotted_parent(subject.layer)) == ModuleKind::kDeformableConv2d;
    subject.flat = tensor.dim() == 1;
    return subject;
  }

  // The custom key that decides, or null. Marks the keys that fit.
  const std::string* custom_key(const Subject& subject) {
    const std::string* decisive = nullptr;
    for (const std::string& key : keys_) {
      if (subject.full_name.find(key) == std::string::npos) continue;
      fitting_.insert(key);
      if (decisive == nullptr) decisive = &key;
    }
    return decisive;
  }

  double lr_mult(const Subject& s) const {
    const bool is_conv = s.kind == ModuleKind::kConv2d || s.kind == ModuleKind::kDepthwiseConv2d;
    if (options_.dcn_offset_lr_mult && s.in_deformable && is_conv && s.layer.find("conv_offset") != std::string::npos) {
      return *options_.dcn_offset_lr_mult;
    }
    const bool free_bias = s.is_bias() && s.kind != ModuleKind::kNorm && !s.in_deformable;
    return free_bias ? options_.bias_lr_mult.value_or(1.0) : 1.0;
  }

  // Adds to `rule` which one it was.
  double decay_mult(const Subject& s, std::string& rule) const {
    const auto apply = [&rule](double mult, const char* name) {
      rule += (rule.empty() ? "" : "/") + std::string(name);
      return mult;
    };
    if (s.kind == ModuleKind::kNorm && options_.norm_decay_mult) return apply(*options_.norm_decay_mult, "norm");
    if (s.is_bias() && !s.in_deformable && options_.bias_decay_mult) return apply(*options_.bias_decay_mult, "bias");
    if (s.kind == ModuleKind::kDepthwiseConv2d && options_.dwconv_decay_mult) {
      return apply(*options_.dwconv_decay_mult, "dwconv");
    }
    if (s.flat && !s.in_deformable && options_.flat_decay_mult) return apply(*options_.flat_decay_mult, "flat");
    return 1.0;
  }

  void warn_of_idle_keys(const NamedTensors& parameters) const {
    for (const std::string& key : keys_) {
      if (fitting_.count(key) != 0) continue;
      log_warning("[ParamwiseOptions] custom_keys: '" + key + "' is part of no parameter's name, expected a part of " +
                  join_first(keys_in(parameters)) + "; correct or remove it");
    }
  }

 private:
  ModuleKind kind_of(const std::string& path) const {
    const auto found = kinds_.find(path);
    return found == kinds_.end() ? ModuleKind::kOther : found->second;
  }

  const ParamwiseOptions& options_;
  std::map<std::string, ModuleKind> kinds_;
  std::vector<std::string> keys_;
  std::set<std::string> fitting_;
};

// A rule that could not take effect would be as good as ignored.
void check_possible(const ModelInfo& model, const OptimizerOptions& optimizer, const ParamwiseOptions& options) {
  if (model.modules().empty() &&
      (options.norm_decay_mult || options.dwconv_decay_mult || options.dcn_offset_lr_mult || options.bias_lr_mult)) {
    throw ConfigError(
        "[ParamwiseOptions] norm_decay_mult, bias_lr_mult, dwconv_decay_mult and dcn_offset_lr_mult ask "
        "for the kinds of layers, but this task lists none; override Task::modules()");
  }
  const bool by_key = std::any_of(options.custom_keys.begin(), options.custom_keys.end(),
                                  [](const auto& entry) { return entry.second.decay_mult != 1.0; });
  const bool multiplies = by_key || options.norm_decay_mult || options.bias_decay_mult || options.dwconv_decay_mult ||
                          options.flat_decay_mult;
  const auto base = base_numbers(optimizer);
  const auto decay = base.find("weight_decay");
  if (!multiplies || (decay != base.end() && decay->second != 0)) return;
  const std::string text = "[ParamwiseOptions] a decay multiplier is set, but " + optimizer.type() +
                           " has no weight decay to multiply; set the optimizer's weight_decay";
  require<ConfigError>(decay != base.end(), text);
  log_warning(text);
}

struct Outcome {
  std::map<std::string, double> numbers;
  std::string rule;
};

Outcome apply(Rules& rules, const Subject& subject, const ParamwiseOptions& options,
              const std::map<std::string, double>& base) {
  Outcome outcome;
  const std::string* key = rules.custom_key(subject);
  const CustomKey custom = key != nullptr ? options.custom_keys.at(*key) : CustomKey{};
  if (key != nullptr) outcome.rule = *key;
  outcome.numbers["lr"] = base.at("lr") * custom.lr_mult;
  if (base.count("weight_decay") != 0) outcome.numbers["weight_decay"] = base.at("weight_decay") * custom.decay_mult;
  for (const auto& [name, value] : custom.numbers) outcome.numbers[name] = value;

  if (key == nullptr || options.compose) {
    const double lr_mult = rules.lr_mult(subject);
    if (lr_mult != 1.0) outcome.rule += (outcome.rule.empty() ? "" : "/") + subject.name + "_lr";
    outcome.numbers["lr"] *= lr_mult;
    const double decay_mult = rules.decay_mult(subject, outcome.rule);
    if (outcome.numbers.count("weight_decay") != 0) outcome.numbers["weight_decay"] *= decay_mult;
  }
  if (outcome.rule.empty()) outcome.rule = "default";
  return outcome;
}

void check_custom_keys(const ParamwiseOptions& options) {
  for (const auto& [key, custom] : options.custom_keys) {
    require<ConfigError>(!key.empty(),
                         "[ParamwiseOptions] custom_keys holds an empty key, which is part of every name; "
                         "set the optimizer's own numbers instead");
    check_multiplier("custom_keys." + key + ".lr_mult", custom.lr_mult);
    check_multiplier("custom_keys." + key + ".decay_mult", custom.decay_mult);
  }
}

}  // namespace

const OptionFields& ParamwiseOptions::fields() {
  using O = ParamwiseOptions;
  return described<O>("ParamwiseOptions", [](const auto& add) {
    add.key("custom_keys", "map", "part of a name: {lr_mult, decay_mult, numbers of the optimizer}");
    add("norm_decay_mult", &O::norm_decay_mult, "factor of the weight decay of norms").in(at_least(0));
    add("bias_lr_mult", &O::bias_lr_mult, "factor of the learning rate of biases").in(at_least(0));
    add("bias_decay_mult", &O::bias_decay_mult, "factor of the weight decay of biases").in(at_least(0));
    add("dwconv_decay_mult", &O::dwconv_decay_mult, "factor of the weight decay of depthwise convolutions")
        .in(at_least(0));
    add("flat_decay_mult", &O::flat_decay_mult, "factor of the weight decay of 1-d parameters").in(at_least(0));
    add("dcn_offset_lr_mult", &O::dcn_offset_lr_mult, "factor of the learning rate of offset convolutions")
        .in(at_least(0));
    add("bypass_duplicate", &O::bypass_duplicate, "no warning of tied parameters");
    add("compose", &O::compose, "the other rules multiply what a custom key gives");
    add.rule(check_custom_keys);
  });
}

ParamGroups paramwise_groups(const ModelInfo& model, const OptimizerOptions& optimizer,
                             const ParamwiseOptions& options) {
  check_options(options);
  check_possible(model, optimizer, options);
  ParamGroupBuilder builder(optimizer, options.bypass_duplicate);
  Rules rules(model, options);
  const NamedTensors parameters = model.named_parameters();
  for (const auto& parameter : parameters) {
    Outcome outcome = apply(rules, rules.subject(parameter.first, parameter.second), options, builder.base());
    builder.add(parameter, std::move(outcome.numbers), outcome.rule);
  }
  rules.warn_of_idle_keys(parameters);
  return builder.finish();
}

}  // namespace duet
