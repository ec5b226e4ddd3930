#pragma once

#include <string>
#include "cli/runs/run_folder.h"

namespace duet {

// How the run of this folder stands, by its log, its lock and the clock.
RunStatus status_of_run(const std::string& folder, const LoggedRun& log);

}  // namespace duet
