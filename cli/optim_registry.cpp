#include "cli/optim_registry.h"
#include <algorithm>
#include <map>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "cli/config/optim_config.h"
#include "cli/config/schedule_config.h"
#include "cli/registry_table.h"

namespace duet {

namespace {

FactoryTable<OptimizerFactory>& optimizers() {
  static FactoryTable<OptimizerFactory> table;
  return table;
}

FactoryTable<ScheduleFactory>& schedules() {
  static FactoryTable<ScheduleFactory> table;
  return table;
}

}  // namespace

void register_optimizer(const std::string& name, OptimizerFactory factory, std::optional<AnyOptions> options) {
  add_factory(optimizers(), "optimizer", name, std::move(factory), std::move(options),
              OptimizerOptions::built_in_types());
}

void register_schedule(const std::string& name, ScheduleFactory factory, std::optional<AnyOptions> options) {
  add_factory(schedules(), "schedule", name, std::move(factory), std::move(options), builtin_schedules());
}

std::vector<std::string> registered_optimizers() { return names_of(optimizers()); }
std::vector<std::string> registered_schedules() { return names_of(schedules()); }
const AnyOptions* options_of_optimizer(const std::string& type) { return options_in(optimizers(), type); }
const AnyOptions* options_of_schedule(const std::string& type) { return options_in(schedules(), type); }

std::optional<OptimizerKind> make_optimizer_kind(ConfigNode node, const std::string& name) {
  const auto found = optimizers().find(name);
  if (found == optimizers().end()) return std::nullopt;
  std::optional<OptimizerKind> kind;
  node.located([&] { kind = found->second.make(node); });
  if (kind->name.empty()) kind->name = name;
  return kind;
}

ScheduleFormulaFn make_schedule_formula(ConfigNode node, const std::string& name) {
  const auto found = schedules().find(name);
  if (found == schedules().end()) return {};
  ScheduleFormulaFn formula;
  node.located([&] { formula = found->second.make(node); });
  if (!formula) node.fail("type", "gave no formula; let its factory return one");
  return formula;
}

}  // namespace duet
