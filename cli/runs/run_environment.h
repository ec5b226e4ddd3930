#pragma once

#include <string>
#include "cli/runs/run_folder.h"

namespace duet {

// What a run has noted of its surroundings: environment.json in its folder, what it logged as "runtime_info" and
// "environment", and the versions in the manifest of its newest checkpoint.
NamedTexts read_environment(const std::string& folder, const LoggedRun& log);

}  // namespace duet
