#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>
#include "base/state_dict.h"

namespace duet {

// A state as bytes for other ranks. What comes from them is checked before memory is taken for it: every reading throws
// PeerError for what cannot be.

// Names, types and shapes of its tensors, and its values; all but the tensors' bytes.
std::string pack_outline(const StateDict& state);
// The same state, its tensors on the host and with any content. They take at most `most_bytes`.
StateDict unpack_outline(const std::string& outline, uint64_t most_bytes);

// The bytes of its tensors, one after the other: contiguous ones on the host.
std::vector<std::pair<char*, uint64_t>> tensor_spans(const StateDict& state);

// Outline and bytes as one text, and back.
std::string pack_state(const StateDict& state);
StateDict unpack_state(const std::string& text);

}  // namespace duet
