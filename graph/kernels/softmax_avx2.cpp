#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/flash_attention_backward_loops.h"
#include "graph/kernels/instruction_sets.h"

namespace duet {

SoftmaxKernels avx2::softmax_kernels() {
  if (!has_vector_functions()) return {};
  return {softmax, log_softmax, log_softmax_backward, attention_forward, attention_backward};
}

}  // namespace duet
