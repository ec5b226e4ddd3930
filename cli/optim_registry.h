#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "../optim/optimizers/optimizer_kind.h"
#include "../optim/schedules/schedule.h"
#include "config/config.h"

namespace duet {

// Read their options from the node under `optim_wrapper.optimizer` or `param_scheduler`, where keys that they do not
// read are errors. What a schedule has in any case (param_name, begin, end, by_epoch, convert_to_iter_based) is read
// already.
using OptimizerFactory = std::function<OptimizerKind(ConfigNode&)>;
using ScheduleFormulaFn = std::function<double(const ScheduleStep& at)>;
using ScheduleFactory = std::function<ScheduleFormulaFn(ConfigNode&)>;

// Make `type: <name>` known to the program. Call them before run_cli(). Throw ConfigError if the name is taken.
// `options` describe the keys that the factory reads, for `duet help`; without them it lists none.
void register_optimizer(const std::string& name, OptimizerFactory factory, std::optional<AnyOptions> options = {});
void register_schedule(const std::string& name, ScheduleFactory factory, std::optional<AnyOptions> options = {});

// Names of those registered here, without the built-in ones.
std::vector<std::string> registered_optimizers();
std::vector<std::string> registered_schedules();
// The descriptions that they came with; null for none.
const AnyOptions* options_of_optimizer(const std::string& type);
const AnyOptions* options_of_schedule(const std::string& type);

// What the factory of that name makes of the node; nothing if none is registered under it.
std::optional<OptimizerKind> make_optimizer_kind(ConfigNode node, const std::string& name);
ScheduleFormulaFn make_schedule_formula(ConfigNode node, const std::string& name);

}  // namespace duet
