#pragma once

#include <vector>
#include "cli/config/run_config.h"

namespace duet {

// Keeps the samples of an evaluation out of those that are trained on, where both are parts of the same files: such a
// part takes val_fraction and split_seed of the training data if it has none. Throws ConfigError that names both keys
// if it has others, and if the training data has no split at all. Warns of an evaluation on samples that are trained
// on.
void share_split(const DataConfig& train, const std::vector<DataConfig>& evaluated);

// Warns where pictures that are evaluated or predicted get another Normalize than those that are trained on, or none.
void compare_normalize(const DataConfig& train, const DataConfig& evaluated);

}  // namespace duet
