#pragma once

#include "cli/config/run_config.h"

namespace duet {

// Warns where pictures that are evaluated or predicted get another Normalize than those that are trained on, or none:
// the model then sees other values than those that it knows.
void compare_normalize(const DataConfig& train, const DataConfig& evaluated);

}  // namespace duet
