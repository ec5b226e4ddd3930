#pragma once

#include <string>
#include "cli/config/config.h"

namespace duet {

// The time under `key` in seconds: 90, 2h, "1h30m", "30 min", or days:hours:minutes:seconds as Lightning writes it; 0
// without the key.
double read_seconds(const ConfigNode& node, const std::string& key);

}  // namespace duet
