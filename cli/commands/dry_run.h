#pragma once

#include <string>
#include "cli/config/run_config.h"

namespace duet {

// Every part of a run in small: config.dry_run steps as one epoch, then as many batches of data.val, data.test and
// data.predict, with all hooks and metrics. Files go to a temporary folder that is removed. `json` gets the report of
// the steps, if it is a file. Returns the exit code.
int dry_run(const RunConfig& config, const std::string& json = {});

}  // namespace duet
