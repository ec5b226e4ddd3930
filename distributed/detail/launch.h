#pragma once

#include <functional>
#include <optional>
#include <string>
#include "distributed/init_distributed.h"

namespace duet {

// Of what `variable(name)` gives in place of the environment, a value or nothing.
Launch read_launch(const LaunchFlags& flags,
                   const std::function<std::optional<std::string>(const std::string&)>& variable);

}  // namespace duet
