#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/flash_attention_backward_loops.h"

// Compiled with AVX-512 instructions: nothing here runs before softmax_kernels_avx512() has asked the CPU.

namespace duet {

SoftmaxKernels softmax_kernels_avx512() {
  const bool fits = __builtin_cpu_supports("avx512f") && has_vector_functions();
  if (!fits) return {};
  return {softmax, log_softmax, log_softmax_backward, attention_forward, attention_backward};
}

}  // namespace duet
