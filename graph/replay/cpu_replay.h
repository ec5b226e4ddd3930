#pragma once

#include "graph/kernels/bitexact_kernel.h"
#include "graph/replay/arena.h"
#include "graph/replay/segment_replay.h"

namespace duet {

// A recorded step as a CpuProgram, replayed kernel by kernel.
std::unique_ptr<SegmentReplay> make_cpu_replay(const KernelPasses& passes, std::shared_ptr<Arena> arena);

}  // namespace duet
