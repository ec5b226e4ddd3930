#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/pointwise_loops.h"

namespace duet {

PointwiseKernels pointwise_kernels_avx2() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return {};
  return kPointwiseKernels;
}

}  // namespace duet
