#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/instruction_sets.h"
#include "graph/kernels/pointwise_loops.h"

namespace duet {

PointwiseKernels avx512::pointwise_kernels() { return kPointwiseKernels; }

}  // namespace duet
