#pragma once

#include <duet/cli/config/config.h>
#include <duet/core/comm/connect.h>
#include <duet/optim/distributed/distributed_options.h>

namespace duet {

// Reads the section `distributed`, which has no effect on a run of one process.
void read_distributed(const ConfigNode& node, DistributedOptions& options, ConnectOptions& connect);

}  // namespace duet
