#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/gemm_loops.h"

// Compiled with AVX-512 instructions: nothing here runs before gemm_kernel_avx512() has asked the CPU.

namespace duet {

GemmKernel gemm_kernel_avx512() { return __builtin_cpu_supports("avx512f") ? multiply_part : nullptr; }

}  // namespace duet
