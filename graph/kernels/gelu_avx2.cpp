#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/gelu_loops.h"

// Compiled with AVX2 instructions: nothing here runs before gelu_kernels_avx2() has asked the CPU.

namespace duet {

GeluKernels gelu_kernels_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? gelu_kernels("Sleef_tanhf8_u10")
                                                                         : GeluKernels{};
}

}  // namespace duet
