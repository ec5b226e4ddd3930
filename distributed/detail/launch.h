#pragma once

#include "distributed/init_distributed.h"

#include <functional>
#include <optional>
#include <string>

namespace duet {

// Of what `variable(name)` gives in place of the environment, a value or nothing.
Launch read_launch(const LaunchFlags& flags,
                   const std::function<std::optional<std::string>(const std::string&)>& variable);

}  // namespace duet
