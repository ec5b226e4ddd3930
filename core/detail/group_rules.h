#pragma once

#include "base/batch.h"
#include "optim/groups/param_group.h"

namespace duet {

// Takes from `parameters`, those that require a gradient, the ones that no group holds. Throws ConfigError for a group
// that holds something else, and unless it is `allowed` for a parameter in no group.
void leave_out_untrained(const ParamGroups& groups, bool allowed, NamedTensors& parameters);

}  // namespace duet
