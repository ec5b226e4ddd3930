#pragma once

#include <cstddef>
#include <vector>
#include "graph/kernels/bitexact_kernel.h"
#include "graph/replay/cpu_program.h"

namespace duet {

// When a program touches a storage of its recording.
struct StorageUse {
  std::size_t first = 0, last = 0;  // ops
  bool rebound = false;             // its memory comes from the op that makes it, at each run

  bool is_none() const { return first > last; }
};

// The memory that runs of the program write into: results that outlive a run each in their own, the rest in the arena.
// There a result of elementwise arithmetic lies in the place of an input that nobody reads later.
void give_memory(CpuProgramParts& parts, const std::vector<StorageUse>& uses, const BitexactKernels& kernels);

}  // namespace duet
