#pragma once

#include <duet/core/comm/communicator.h>
#include <duet/core/state_dict.h>

#include <vector>

namespace duet {

// Every rank's small state, by rank: tensors on the host (states of generators, buffers), nothing else.
std::vector<StateDict> gather_state(Communicator& communicator, const StateDict& own);

}  // namespace duet
