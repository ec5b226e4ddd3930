#pragma once

#include <string>
#include <vector>
#include "base/state_dict.h"

namespace duet {

// What a checkpoint has below the published_keys, names such as "model" or "hooks.ema.weights"; of a single one without
// it. A key that has nothing below it is warned of.
StateDict load_published(const std::vector<std::string>& keys, const std::string& checkpoint);

}  // namespace duet
