#include <duet/cli/optim_registry.h>

#include <c10/util/StringUtil.h>
#include <duet/cli/optim_config.h>
#include <duet/cli/schedule_config.h>
#include <duet/core/error.h>

#include <algorithm>
#include <map>

namespace duet {

namespace {

template <class Factory>
using Table = std::map<std::string, Factory>;

Table<OptimizerFactory>& optimizers() {
  static Table<OptimizerFactory> table;
  return table;
}

Table<ScheduleFactory>& schedules() {
  static Table<ScheduleFactory> table;
  return table;
}

template <class Factory>
void add(Table<Factory>& table, const std::vector<std::string>& built_in, const char* kind, const std::string& name, Factory factory) {
  if (name.empty() || !factory) {
    throw ConfigError(c10::str("[Registry] found a ", kind, " '", name, "' without name or factory, expected both"));
  }
  const bool taken = std::find(built_in.begin(), built_in.end(), name) != built_in.end();
  if (taken || !table.emplace(name, std::move(factory)).second) {
    throw ConfigError(c10::str("[Registry] the ", kind, " type '", name, "' is registered twice; choose another name"));
  }
}

template <class Factory>
std::vector<std::string> names_of(const Table<Factory>& table) {
  std::vector<std::string> names;
  for (const auto& entry : table) names.push_back(entry.first);
  return names;
}

}  // namespace

void register_optimizer(const std::string& name, OptimizerFactory factory) {
  add(optimizers(), builtin_optimizers(), "optimizer", name, std::move(factory));
}

void register_schedule(const std::string& name, ScheduleFactory factory) {
  add(schedules(), builtin_schedules(), "schedule", name, std::move(factory));
}

std::vector<std::string> registered_optimizers() { return names_of(optimizers()); }
std::vector<std::string> registered_schedules() { return names_of(schedules()); }

std::optional<OptimizerKind> make_optimizer_kind(ConfigNode node, const std::string& name) {
  const auto found = optimizers().find(name);
  if (found == optimizers().end()) return std::nullopt;
  std::optional<OptimizerKind> kind;
  node.located([&] { kind = found->second(node); });
  if (kind->name.empty()) kind->name = name;
  return kind;
}

ScheduleFormulaFn make_schedule_formula(ConfigNode node, const std::string& name) {
  const auto found = schedules().find(name);
  if (found == schedules().end()) return {};
  ScheduleFormulaFn formula;
  node.located([&] { formula = found->second(node); });
  if (!formula) node.fail("type", "gave no formula; let its factory return one");
  return formula;
}

}  // namespace duet
