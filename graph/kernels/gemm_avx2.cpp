#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/gemm_loops.h"

// Compiled with AVX2 instructions: nothing here runs before gemm_kernel_avx2() has asked the CPU.

namespace duet {

GemmKernel gemm_kernel_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? multiply_part : nullptr;
}

}  // namespace duet
