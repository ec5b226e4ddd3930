#include "graph/kernels/cpu_kernels.h"

// Another kind of CPU: ATen's kernels run.

namespace duet {

CpuKernels avx2_kernels() { return kNoKernels; }
CpuKernels avx512_kernels() { return kNoKernels; }

}  // namespace duet
