#pragma once

#include <vector>
#include "base/state_dict.h"
#include "distributed/communicator.h"

namespace duet {

// Every rank's small state, by rank: tensors on the host (states of generators, buffers), nothing else.
std::vector<StateDict> gather_state(Communicator& communicator, const StateDict& own);

}  // namespace duet
