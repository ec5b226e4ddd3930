#pragma once

#include <cstdint>
#include <vector>
#include "graph/kernels/bitexact_kernel.h"

namespace duet {

struct ChainSizes {          // bytes
  int64_t cached = 1 << 20;  // all tensors of a chain have more: in fewer each op finds what the last one left
  int64_t tile = 1 << 16;    // of the rows that go together
};

// The pass with other sizes.
void find_chains(const std::vector<OpCall>& calls, BitexactKernels& kernels, const ChainSizes& sizes);

}  // namespace duet
