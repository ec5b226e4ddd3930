#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>
#include "../../optim/groups/param_group.h"
#include "config.h"

namespace duet {

// Reads its options from `paramwise_cfg`, where keys that it does not read are errors, and returns what puts a task's
// parameters into groups; an empty function means one group.
using OptimWrapperConstructor = std::function<ParamGroupsFn(const ConfigNode& paramwise_cfg)>;

// Makes `optim_wrapper: {constructor: <name>}` known to the program. Call it before run_cli(). Throws ConfigError if
// the name is taken. Known from the start: DefaultOptimWrapperConstructor (ParamwiseOptions) and
// LearningRateDecayOptimizerConstructor (LayerDecayOptions).
// `options`: what `duet help` lists; nothing lists no keys.
void register_optim_wrapper_constructor(const std::string& name, OptimWrapperConstructor constructor,
                                        std::optional<AnyOptions> options = {});
// Null if it gave none.
const AnyOptions* options_of_constructor(const std::string& name);

// Their names.
std::vector<std::string> registered_optim_wrapper_constructors();

// What `constructor` and `paramwise_cfg` of the node `optim_wrapper` say.
ParamGroupsFn read_param_groups(const ConfigNode& optim_wrapper);

}  // namespace duet
