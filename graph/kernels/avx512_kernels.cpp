#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/batch_norm_forward_loops.h"
#include "graph/kernels/conv_loops.h"
#include "graph/kernels/conv_weights_loops.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/flash_attention_backward_loops.h"
#include "graph/kernels/gelu_minimax_loops.h"
#include "graph/kernels/max_pool_tiles.h"
#include "graph/kernels/pointwise_loops.h"

namespace duet {

// For most others ATen has no wider vectors than AVX2's, also where it has AVX-512.
CpuKernels avx512_kernels() {
  CpuKernels kernels = kNoKernels;
  kernels.gemm = multiply_part;
  kernels.max_pool = {max_pool_forward, max_pool_backward_in_tiles};
  kernels.batch_norm.statistics = batch_norm_statistics;
  kernels.batch_norm.normalize = batch_norm_normalize;
  kernels.conv = kConvKernels;
  kernels.pointwise = kPointwiseKernels;
  kernels.gelu_erf = {gelu_minimax_forward, gelu_erf_backward};
  kernels.gelu_tanh = {gelu_forward, gelu_backward};
  if (!find_vector_functions()) return kernels;
  kernels.softmax = {softmax, log_softmax, log_softmax_backward, attention_forward, attention_backward};
  return kernels;
}

}  // namespace duet
