#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/instruction_sets.h"
#include "graph/kernels/pointwise_loops.h"

namespace duet {

PointwiseKernels avx2::pointwise_kernels() { return kPointwiseKernels; }

}  // namespace duet
