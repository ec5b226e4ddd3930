#pragma once

#include "base/batch.h"
#include "distributed/communicator.h"

namespace duet {

// Makes sure that all ranks start from the same parameters and buffers. Throws ConfigError on every rank if names,
// shapes or types differ. Values that differ from rank 0's are replaced by them, and a warning says so.
void make_same_model(const NamedTensors& tensors, Communicator& communicator);

}  // namespace duet
