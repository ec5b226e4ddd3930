#include <map>
#include <string>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "cli/config/run_config.h"
#include "cli/registry.h"
#include "core/detail/param_scheduler_hook.h"
#include "optim/schedules/detail/schedule_rules.h"

namespace duet {

namespace {

struct TypeName {
  std::string type;    // of a Schedule
  std::string suffix;  // what of it mmengine adds
};

const std::map<std::string, TypeName>& type_names() {
  static const std::map<std::string, TypeName> kNames = [] {
    std::map<std::string, TypeName> names;
    for (const std::string& type : schedule_types()) {
      for (const char* suffix : {"", "LR", "ParamScheduler", "Momentum"}) names[type + suffix] = {type, suffix};
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

TypeName type_name_of(const ConfigNode& node) {
  const std::string type = node.need<std::string>("type");
  const auto found = type_names().find(type);
  if (found != type_names().end()) return found->second;
  std::vector<std::string> known = builtin_schedules(false), all = builtin_schedules();
  for (const std::string& name : registered("schedule")) {
    if (name == type) return {type, ""};
    known.push_back(name);
    all.push_back(name);
  }
  node.fail_value(
      "type", c10::str("a schedule; known: ", join(known), ", each also with LR, Momentum or ParamScheduler at the end",
                       did_you_mean(type, all)));
}

template <class T>
void read_into(T& schedule, const ConfigNode& node, const TypeName& name) {
  if (!name.suffix.empty()) {
    if constexpr (std::is_same_v<T, Constant>) schedule.factor = 1.0 / 3;
    if constexpr (std::is_same_v<T, Linear>) schedule.start_factor = 1.0 / 3;
  }
  if (name.suffix == "Momentum") schedule.param_name = "momentum";
  // Under the other names it is part of the name.
  if (name.suffix.empty() || name.suffix == "ParamScheduler") {
    schedule.param_name = node.read<std::string>("param_name", schedule.param_name);
  }
  read_fields(node, T::fields(), &schedule);
  if (schedule.convert_to_iter_based && !schedule.by_epoch) {
    node.fail("convert_to_iter_based",
              "is true, but the schedule counts steps already; remove it, or set by_epoch: true");
  }
  if constexpr (std::is_same_v<T, CustomSchedule>) schedule.formula = make_schedule_formula(node, name.type);
}

ScheduleConfig read_schedule(const ConfigNode& node) {
  const TypeName name = type_name_of(node);
  ScheduleConfig schedule{make_schedule(name.type), node};
  std::visit([&](auto& options) { read_into(options, node, name); }, schedule.options);
  node.located([&] { check_schedule(schedule.options); });
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
    const auto* plateau = std::get_if<ReduceOnPlateau>(&schedule.options);
    if (plateau == nullptr) continue;
    require_metric(schedule.node, "monitor", plateau->monitor, metrics);
    if (!lacks_rule(*plateau)) continue;
    schedule.node.fail("rule", "is missing, though more of '" + plateau->monitor +
                                   "' is better by its name; set rule: greater, or less");
  }
}

std::vector<Schedule> resolve_schedules(const std::vector<ScheduleConfig>& schedules, int64_t steps_per_epoch) {
  std::vector<Schedule> resolved;
  for (const ScheduleConfig& schedule : schedules) {
    if (interval_of(schedule.options).by_epoch && steps_per_epoch <= 0) {
      schedule.node.fail("by_epoch", "is true, but the data has no epochs; count in steps with by_epoch: false");
    }
    resolved.push_back(in_steps(schedule.options, steps_per_epoch));
  }
  return resolved;
}

}  // namespace duet
