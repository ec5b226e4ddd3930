#pragma once

#include <string>
#include "cli/config/config.h"

namespace duet {

// What dump() says as one JSON object, for programs that read no YAML. A plain scalar that is a number, true or false
// is one there too; infinities and NaN are texts.
std::string config_json(const ConfigNode& root);

}  // namespace duet
