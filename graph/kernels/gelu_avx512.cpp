#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/gelu_loops.h"

// Compiled with AVX-512 instructions: nothing here runs before gelu_kernels_avx512() has asked the CPU.

namespace duet {

GeluKernels gelu_kernels_avx512() {
  return __builtin_cpu_supports("avx512f") ? gelu_kernels("Sleef_tanhf16_u10") : GeluKernels{};
}

}  // namespace duet
