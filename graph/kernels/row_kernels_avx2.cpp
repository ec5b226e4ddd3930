#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/column_sum_loops.h"
#include "graph/kernels/layer_norm_backward_loops.h"
#include "graph/kernels/layer_norm_loops.h"

// Compiled with AVX2 instructions: nothing here runs before row_kernels_avx2() has asked the CPU.

namespace duet {

RowKernels row_kernels_avx2() {
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return {};
  return {column_sum, layer_norm_forward, layer_norm_backward};
}

}  // namespace duet
