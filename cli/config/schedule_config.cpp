#include "cli/config/schedule_config.h"

#include <c10/util/StringUtil.h>
#include "cli/config/metric_config.h"
#include "cli/optim_registry.h"
#include "base/detail/nearest.h"
#include "optim/schedules/detail/schedule_curve.h"

#include <limits>
#include <map>
#include <string>

namespace duet {

namespace {

constexpr double kHuge = std::numeric_limits<double>::max();
// More steps or epochs than any run has: products of two of these stay within int64.
constexpr int64_t kLongest = int64_t{1} << 31;

struct TypeName {
  std::string type;    // of ScheduleOptions
  std::string suffix;  // what of it mmengine adds
};

const std::map<std::string, TypeName>& type_names() {
  static const std::map<std::string, TypeName> kNames = [] {
    std::map<std::string, TypeName> names;
    for (const char* type : {"Constant", "Linear", "Polynomial", "Step", "MultiStep", "Exponential", "Cosine",
                             "CosineRestart", "OneCycle", "WSD", "ReduceOnPlateau"}) {
      for (const char* suffix : {"", "LR", "ParamScheduler", "Momentum"})
        names[c10::str(type, suffix)] = {type, suffix};
    }
    for (const char* suffix : {"LR", "ParamScheduler", "Momentum"}) {
      names[c10::str("Poly", suffix)] = {"Polynomial", suffix};
      names[c10::str("CosineAnnealing", suffix)] = {"Cosine", suffix};
    }
    names["ReduceLROnPlateau"] = {"ReduceOnPlateau", "LR"};  // torch's
    return names;
  }();
  return kNames;
}

TypeName type_of(const ConfigNode& node) {
  const std::string type = node.need<std::string>("type");
  const auto found = type_names().find(type);
  if (found != type_names().end()) return found->second;
  std::vector<std::string> known = builtin_schedules(false), all = builtin_schedules();
  for (const std::string& name : registered_schedules()) {
    if (name == type) return {type, ""};
    known.push_back(name);
    all.push_back(name);
  }
  node.fail_value("type", c10::str("a schedule; known: ", join(known),
                                   ", each also with LR, Momentum or ParamScheduler at the end", did_you_mean(type, all)));
}

void read_count(const ConfigNode& node, const char* key, int64_t& value, int64_t min = 0) {
  value = node.read_int(key, value, min, kLongest);
}

void read_number(const ConfigNode& node, const char* key, double& value, double max = kHuge) {
  value = node.read_number(key, value, 0, max);
}

std::vector<int64_t> read_counts(const ConfigNode& node, const char* key) {
  const auto counts = node.need<std::vector<int64_t>>(key);
  for (const int64_t count : counts) {
    if (count > kLongest) node.fail(key, c10::str("holds ", count, ", expected at most ", kLongest));
  }
  return counts;
}

void read_lowest(const ConfigNode& node, ScheduleOptions& options) {
  options.eta_min_ratio = node.find<double>("eta_min_ratio");
  if (!options.eta_min_ratio || node.find<double>("eta_min")) read_number(node, "eta_min", options.eta_min);
}

void read_one_cycle(const ConfigNode& node, OneCycleOptions& cycle) {
  // torch calls it max_lr.
  const bool torch_name = node.find<double>("max_lr").has_value();
  if (torch_name && node.find<double>("eta_max"))
    node.fail("max_lr", "is set beside eta_max, which is the same; remove one");
  read_number(node, torch_name ? "max_lr" : "eta_max", cycle.eta_max);
  read_count(node, "total_steps", cycle.total_steps);
  read_number(node, "pct_start", cycle.pct_start, 1);
  cycle.anneal_strategy = node.read_choice("anneal_strategy", cycle.anneal_strategy, {"cos", "linear"});
  read_number(node, "div_factor", cycle.div_factor);
  read_number(node, "final_div_factor", cycle.final_div_factor);
  cycle.three_phase = node.read<bool>("three_phase", cycle.three_phase);
  cycle.cycle_momentum = node.read<bool>("cycle_momentum", cycle.cycle_momentum);
  read_number(node, "base_momentum", cycle.base_momentum);
  read_number(node, "max_momentum", cycle.max_momentum);
}

void read_wsd(const ConfigNode& node, WsdOptions& wsd) {
  read_count(node, "warmup_steps", wsd.warmup_steps);
  read_number(node, "warmup_ratio", wsd.warmup_ratio, 1);
  read_count(node, "decay_steps", wsd.decay_steps);
  read_number(node, "decay_ratio", wsd.decay_ratio, 1);
  wsd.decay_type = node.read_choice("decay_type", wsd.decay_type, {"linear", "sqrt", "cosine"});
}

void read_plateau(const ConfigNode& node, PlateauOptions& plateau) {
  plateau.monitor = node.read<std::string>("monitor", plateau.monitor);
  node.note_kind("monitor", "the name of a metric");
  plateau.rule = node.read_choice("rule", plateau.rule, {"less", "greater"});
  read_number(node, "factor", plateau.factor, 1);
  read_count(node, "patience", plateau.patience);
  read_number(node, "threshold", plateau.threshold);
  plateau.threshold_rule = node.read_choice("threshold_rule", plateau.threshold_rule, {"rel", "abs"});
  read_count(node, "cooldown", plateau.cooldown);
  // torch calls it min_lr.
  read_number(node, node.find<double>("min_lr") ? "min_lr" : "min_value", plateau.min_value);
  read_number(node, "eps", plateau.eps);
}

void read_decay(const ConfigNode& node, ScheduleOptions& options) {
  const std::string& type = options.type;
  if (type == "Step") {
    node.need<int64_t>("step_size");
    read_count(node, "step_size", options.step_size, 1);
  }
  if (type == "MultiStep") options.milestones = read_counts(node, "milestones");
  if (type == "Exponential") node.need<double>("gamma");
  read_number(node, "gamma", options.gamma);
}

void read_shape(const ConfigNode& node, ScheduleOptions& options) {
  const std::string& type = options.type;
  if (type == "Constant") read_number(node, "factor", options.factor);
  if (type == "Linear") {
    read_number(node, "start_factor", options.start_factor);
    read_number(node, "end_factor", options.end_factor);
  }
  if (type == "Step" || type == "MultiStep" || type == "Exponential") read_decay(node, options);
  if (type == "Cosine") read_count(node, "T_max", options.T_max);
  if (type == "CosineRestart") {
    options.periods = read_counts(node, "periods");
    options.restart_weights = node.find<std::vector<double>>("restart_weights").value_or(std::vector<double>{});
  }
  if (type == "Polynomial") read_number(node, "power", options.power);
  if (type == "OneCycle") read_one_cycle(node, options.one_cycle);
  if (type == "WSD") read_wsd(node, options.wsd);
  if (type == "ReduceOnPlateau") read_plateau(node, options.plateau);
  if (type == "Polynomial" || type == "Cosine" || type == "CosineRestart" || type == "WSD") read_lowest(node, options);
}

ScheduleConfig read_schedule(const ConfigNode& node) {
  ScheduleConfig schedule{{}, node};
  ScheduleOptions& options = schedule.options;
  const TypeName name = type_of(node);
  options.type = name.type;
  if (!name.suffix.empty()) options.factor = options.start_factor = 1.0 / 3;
  if (name.suffix == "Momentum") options.param_name = "momentum";
  // Under the other names it is part of the name.
  if (name.suffix.empty() || name.suffix == "ParamScheduler") {
    options.param_name = node.read<std::string>("param_name", options.param_name);
  }
  read_count(node, "begin", options.begin);
  read_count(node, "end", options.end, -1);
  options.by_epoch = node.read<bool>("by_epoch", options.by_epoch);
  options.convert_to_iter_based = node.read<bool>("convert_to_iter_based", options.convert_to_iter_based);
  if (options.convert_to_iter_based && !options.by_epoch) {
    node.fail("convert_to_iter_based",
              "is true, but the schedule counts steps already; remove it, or set by_epoch: true");
  }
  options.formula = make_schedule_formula(node, options.type);
  if (!options.formula) read_shape(node, options);
  node.located([&] { options.validate(); });
  return schedule;
}

}  // namespace

std::vector<std::string> builtin_schedules(bool with_endings) {
  std::vector<std::string> names;
  for (const auto& [name, parts] : type_names()) {
    if (with_endings || parts.suffix.empty()) names.push_back(name);
  }
  return names;
}

std::vector<ScheduleConfig> read_schedules(const ConfigNode& root) {
  std::vector<ScheduleConfig> schedules;
  for (const ConfigNode& node : root.one_or_list("param_scheduler")) schedules.push_back(read_schedule(node));
  return schedules;
}

void check_monitors(const std::vector<ScheduleConfig>& schedules, const std::vector<std::string>& metrics) {
  for (const ScheduleConfig& schedule : schedules) {
    const ScheduleOptions& options = schedule.options;
    if (options.type == "ReduceOnPlateau") require_metric(schedule.node, "monitor", options.plateau.monitor, metrics);
  }
}

std::vector<ScheduleOptions> resolve_schedules(const std::vector<ScheduleConfig>& schedules,
                                               int64_t steps_per_epoch) {
  std::vector<ScheduleOptions> resolved;
  for (const ScheduleConfig& schedule : schedules) {
    if (schedule.options.by_epoch && steps_per_epoch <= 0) {
      schedule.node.fail("by_epoch", "is true, but the data has no epochs; count in steps with by_epoch: false");
    }
    resolved.push_back(in_steps(schedule.options, steps_per_epoch));
  }
  return resolved;
}

}  // namespace duet
