#include "optim/optimizers/optimizer_options.h"

#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "optim/optimizers/optimizer_kind.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <limits>

namespace duet {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

using Types = std::initializer_list<const char*>;

bool is_one_of(const std::string& type, Types types) { return std::find(types.begin(), types.end(), type) != types.end(); }

std::string joined(Types types) {
  std::string text;
  for (const char* type : types) text += (text.empty() ? "" : ", ") + std::string(type);
  return text;
}

constexpr Types kTypes = {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Lion", "Muon", "LBFGS"};

struct Range {
  double low, high;  // low allowed, high not
  const char* text;
};

Range range_of(const std::string& name) {
  if (name == "beta1" || name == "beta2" || name == "alpha") return {0, 1, "in [0, 1)"};
  if (name == "dampening") return {0, std::nextafter(1.0, 2.0), "in [0, 1]"};
  return {0, kInfinity, ">= 0"};
}

void check_range(const char* field, double value, const Range& range) {
  if (std::isfinite(value) && value >= range.low && value < range.high) return;
  throw ConfigError(c10::str("[OptimizerOptions] ", field, " is ", value, ", expected a number ", range.text));
}

void check_at_least_one(const char* field, int64_t value) {
  if (value < 1) throw ConfigError(c10::str("[OptimizerOptions] ", field, " is ", value, ", expected an integer >= 1"));
}

// An option that the type does not have would be ignored without a word.
void check_given(const OptimizerOptions& options, const char* field, bool given, Types types) {
  if (!given || is_one_of(options.type, types)) return;
  throw ConfigError(c10::str("[OptimizerOptions] found ", field, " for ", options.type, ", which does not have it, expected it only for ",
                             joined(types), "; leave it out"));
}

void check_fields(const OptimizerOptions& o) {
  const OptimizerOptions fresh;
  check_given(o, "betas", o.betas.has_value(), {"Adam", "AdamW", "NAdam", "RAdam", "Lion", "Muon"});
  check_given(o, "eps", o.eps.has_value(), {"Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Muon"});
  check_given(o, "weight_decay", o.weight_decay.has_value(),
              {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Lion", "Muon"});
  check_given(o, "amsgrad", o.amsgrad, {"Adam", "AdamW"});
  check_given(o, "momentum", o.momentum.has_value(), {"SGD", "RMSprop", "Muon"});
  check_given(o, "dampening", o.dampening != 0, {"SGD"});
  check_given(o, "nesterov", o.nesterov.has_value(), {"SGD", "Muon"});
  check_given(o, "maximize", o.maximize, {"SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "NAdam", "RAdam", "Lion", "Muon"});
  check_given(o, "lr_decay", o.lr_decay != 0, {"Adagrad"});
  check_given(o, "initial_accumulator_value", o.initial_accumulator_value != 0, {"Adagrad"});
  check_given(o, "alpha", o.alpha != fresh.alpha, {"RMSprop"});
  check_given(o, "centered", o.centered, {"RMSprop"});
  check_given(o, "momentum_decay", o.momentum_decay != fresh.momentum_decay, {"NAdam"});
  check_given(o, "decoupled_weight_decay", o.decoupled_weight_decay, {"NAdam", "RAdam"});
  check_given(o, "ns_steps", o.ns_steps != fresh.ns_steps, {"Muon"});
  check_given(o, "ns_coefficients", o.ns_coefficients != fresh.ns_coefficients, {"Muon"});
  check_given(o, "adjust_lr_fn", o.adjust_lr_fn != fresh.adjust_lr_fn, {"Muon"});
  check_given(o, "max_iter", o.max_iter != fresh.max_iter, {"LBFGS"});
  check_given(o, "max_eval", o.max_eval.has_value(), {"LBFGS"});
  check_given(o, "tolerance_grad", o.tolerance_grad != fresh.tolerance_grad, {"LBFGS"});
  check_given(o, "tolerance_change", o.tolerance_change != fresh.tolerance_change, {"LBFGS"});
  check_given(o, "history_size", o.history_size != fresh.history_size, {"LBFGS"});
  check_given(o, "line_search_fn", o.line_search_fn != fresh.line_search_fn, {"LBFGS"});
}

void check_word(const char* field, const std::string& value, Types words) {
  if (!is_one_of(value, words)) {
    throw ConfigError(c10::str("[OptimizerOptions] ", field, " is '", value, "', expected ", joined(words)));
  }
}

}  // namespace

void check_optimizer_number(const std::string& type, const std::string& name, double value) {
  const Range range = range_of(name);
  if (std::isfinite(value) && value >= range.low && value < range.high) return;
  throw ConfigError(c10::str("[Optimizer] found ", name, " = ", value, " for ", type, ", expected a number ", range.text));
}

namespace {

void check_own(const OptimizerOptions& options) {
  const OptimizerKind& kind = *options.kind;
  if (kind.name != options.type || !kind.slots || !kind.numbers || !kind.kernel) {
    throw ConfigError(c10::str("[OptimizerOptions] kind is '", kind.name, "' for the type '", options.type, "', expected one of that name ",
                               "with slots, numbers and kernel"));
  }
  if (kind.numbers(options).count("lr") == 0) {
    throw ConfigError("[OptimizerOptions] kind '" + kind.name + "' has no number lr, expected its start value among its numbers");
  }
}

}  // namespace

void OptimizerOptions::validate() const {
  if (!kind) check_word("type", type, kTypes);
  check_range("lr", lr.value_or(0), range_of("lr"));
  check_range("weight_decay", weight_decay.value_or(0), range_of("weight_decay"));
  if (betas) {
    check_range("betas[0]", (*betas)[0], range_of("beta1"));
    check_range("betas[1]", (*betas)[1], range_of("beta2"));
  }
  check_range("eps", eps.value_or(0), range_of("eps"));
  check_range("momentum", momentum.value_or(0), range_of("momentum"));
  check_range("dampening", dampening, range_of("dampening"));
  check_range("lr_decay", lr_decay, range_of("lr_decay"));
  check_range("initial_accumulator_value", initial_accumulator_value, {0, kInfinity, ">= 0"});
  check_range("alpha", alpha, range_of("alpha"));
  check_range("momentum_decay", momentum_decay, {0, kInfinity, ">= 0"});
  check_range("tolerance_grad", tolerance_grad, {0, kInfinity, ">= 0"});
  check_range("tolerance_change", tolerance_change, {0, kInfinity, ">= 0"});
  check_at_least_one("ns_steps", ns_steps);
  check_at_least_one("max_iter", max_iter);
  check_at_least_one("max_eval", max_eval.value_or(1));
  check_at_least_one("history_size", history_size);
  check_word("adjust_lr_fn", adjust_lr_fn, {"original", "match_rms_adamw"});
  check_word("line_search_fn", line_search_fn, {"none", "strong_wolfe"});
  if (kind) return check_own(*this);
  check_fields(*this);
  if (type == "SGD" && nesterov.value_or(false) && !(momentum.value_or(0) > 0 && dampening == 0)) {
    throw ConfigError("[OptimizerOptions] nesterov is true, expected momentum > 0 and dampening = 0 beside it; set them, or "
                      "leave nesterov out");
  }
}

}  // namespace duet
