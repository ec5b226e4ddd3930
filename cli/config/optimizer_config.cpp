#include "cli/config/optim_config.h"

#include <c10/util/StringUtil.h>
#include "cli/optim_registry.h"
#include "optim/groups/detail/param_group_builder.h"

#include <limits>
#include <string>

namespace duet {

namespace {

constexpr double kHuge = std::numeric_limits<double>::max();

template <std::size_t count>
std::array<double, count> read_numbers(const ConfigNode& node, const std::string& key, const std::array<double, count>& fallback) {
  const auto found = node.read<std::vector<double>>(key, {fallback.begin(), fallback.end()});
  if (found.size() != count) node.fail(key, c10::str("has ", found.size(), " numbers, expected ", count));
  std::array<double, count> numbers{};
  std::copy(found.begin(), found.end(), numbers.begin());
  return numbers;
}

void read_lbfgs(const ConfigNode& node, OptimizerOptions& options) {
  options.lr = node.read_number("lr", 1.0, 0, kHuge);
  options.max_iter = node.read_int("max_iter", options.max_iter, 1);
  if (const auto max_eval = node.find<int64_t>("max_eval")) options.max_eval = *max_eval;
  options.tolerance_grad = node.read_number("tolerance_grad", options.tolerance_grad, 0, kHuge);
  options.tolerance_change = node.read_number("tolerance_change", options.tolerance_change, 0, kHuge);
  options.history_size = node.read_int("history_size", options.history_size, 1);
  options.line_search_fn = node.read_choice("line_search_fn", options.line_search_fn, {"none", "strong_wolfe"});
}

// What only some types have.
void read_flags(const ConfigNode& node, OptimizerOptions& options) {
  const std::string& type = options.type;
  if (type == "Adam" || type == "AdamW") options.amsgrad = node.read<bool>("amsgrad", options.amsgrad);
  if (type == "SGD") options.dampening = node.read_number("dampening", options.dampening, 0, kHuge);
  if (type == "SGD" || type == "Muon") options.nesterov = node.read<bool>("nesterov", type == "Muon");
  if (type == "Adagrad") {
    options.lr_decay = node.read_number("lr_decay", options.lr_decay, 0, kHuge);
    options.initial_accumulator_value = node.read_number("initial_accumulator_value", options.initial_accumulator_value, 0, kHuge);
  }
  if (type == "RMSprop") {
    options.alpha = node.read_number("alpha", options.alpha, 0, 1);
    options.centered = node.read<bool>("centered", options.centered);
  }
  if (type == "NAdam") options.momentum_decay = node.read_number("momentum_decay", options.momentum_decay, 0, kHuge);
  if (type == "NAdam" || type == "RAdam") {
    options.decoupled_weight_decay = node.read<bool>("decoupled_weight_decay", options.decoupled_weight_decay);
  }
  if (type == "Muon") {
    options.ns_steps = node.read_int("ns_steps", options.ns_steps, 1, 100);
    options.ns_coefficients = read_numbers(node, "ns_coefficients", options.ns_coefficients);
    options.adjust_lr_fn = node.read_choice("adjust_lr_fn", options.adjust_lr_fn, {"original", "match_rms_adamw"});
  }
}

}  // namespace

const std::vector<std::string>& builtin_optimizers() {
  static const std::vector<std::string> kNames = {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Lion", "Muon", "LBFGS"};
  return kNames;
}

OptimizerOptions read_optimizer(const ConfigNode& node) {
  OptimizerOptions options;
  std::vector<std::string> types = builtin_optimizers();
  for (const std::string& name : registered_optimizers()) types.push_back(name);
  options.type = node.read_choice("type", options.type, types);
  if (std::optional<OptimizerKind> own = make_optimizer_kind(node, options.type)) {
    options.kind = std::make_shared<const OptimizerKind>(std::move(*own));
  } else if (options.type == "LBFGS") {
    read_lbfgs(node, options);
  } else {
    const std::map<std::string, double> defaults = base_numbers(options);
    const auto has = [&](const char* name) { return defaults.count(name) != 0; };
    options.lr = node.read_number("lr", defaults.at("lr"), 0, kHuge);
    options.weight_decay = node.read_number("weight_decay", defaults.at("weight_decay"), 0, kHuge);
    if (options.type == "SGD" || options.type == "RMSprop" || options.type == "Muon") {
      options.momentum = node.read_number("momentum", has("momentum") ? defaults.at("momentum") : 0, 0, kHuge);
    }
    if (has("beta1")) options.betas = read_numbers(node, "betas", std::array{defaults.at("beta1"), defaults.at("beta2")});
    if (has("eps")) options.eps = node.read_number("eps", defaults.at("eps"), 0, kHuge);
    options.maximize = node.read<bool>("maximize", options.maximize);
    read_flags(node, options);
  }
  node.located([&] { options.validate(); });
  return options;
}

}  // namespace duet
