#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/batch_norm_forward_loops.h"
#include "graph/kernels/max_pool_tiles.h"

// Compiled with AVX-512 instructions: nothing here runs before image_kernels_avx512() has asked the CPU.

namespace duet {

ImageKernels image_kernels_avx512() {
  if (!__builtin_cpu_supports("avx512f")) return {};
  return {{max_pool_forward, max_pool_backward_in_tiles}, {batch_norm_forward, nullptr}};
}

}  // namespace duet
