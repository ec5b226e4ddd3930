#pragma once

#include <string>
#include "base/state_dict.h"

namespace duet {

// A state as bytes for other ranks, by LibTorch's pickler. Tensors lie on the host.
std::string pack_state(const StateDict& state);
// Throws PeerError for bytes that are none.
StateDict unpack_state(const std::string& bytes);

}  // namespace duet
