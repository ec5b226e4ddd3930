#pragma once

#include "cli/config/config.h"
#include "distributed/init_distributed.h"

namespace duet {

// Reads the section `distributed`, which has no effect on a run of one process.
void read_distributed(const ConfigNode& node, DistributedOptions& options, ConnectOptions& connect);

}  // namespace duet
