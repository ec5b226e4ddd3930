#pragma once

#include "graph/kernels/bitexact_kernel.h"
#include "graph/replay/segment_replay.h"

namespace duet {

// A recorded step as a CpuProgram, replayed kernel by kernel.
std::unique_ptr<SegmentReplay> make_cpu_replay(const KernelPasses& passes);

}  // namespace duet
