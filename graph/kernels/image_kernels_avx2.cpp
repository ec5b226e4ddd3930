#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/batch_norm_backward_loops.h"
#include "graph/kernels/batch_norm_forward_loops.h"
#include "graph/kernels/max_pool_loops.h"

// Compiled with AVX2 instructions: nothing here runs before image_kernels_avx2() has asked the CPU.

namespace duet {

ImageKernels image_kernels_avx2() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return {};
  return {{max_pool_forward, max_pool_backward}, {batch_norm_forward, batch_norm_backward}};
}

}  // namespace duet
