#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/softmax_loops.h"

// Compiled with AVX-512 instructions: nothing here runs before softmax_kernels_avx512() has asked the CPU.

namespace duet {

SoftmaxKernels softmax_kernels_avx512() {
  const bool fits = __builtin_cpu_supports("avx512f") && has_vector_functions();
  return fits ? SoftmaxKernels{softmax, log_softmax, log_softmax_backward} : SoftmaxKernels();
}

}  // namespace duet
