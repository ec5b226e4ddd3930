#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/pointwise_loops.h"

namespace duet {

PointwiseKernels pointwise_kernels_avx512() {
  if (!__builtin_cpu_supports("avx512f")) return {};
  return kPointwiseKernels;
}

}  // namespace duet
