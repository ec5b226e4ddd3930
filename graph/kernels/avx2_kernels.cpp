#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/batch_norm_backward_loops.h"
#include "graph/kernels/batch_norm_forward_loops.h"
#include "graph/kernels/column_sum_loops.h"
#include "graph/kernels/conv_loops.h"
#include "graph/kernels/conv_weights_loops.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/flash_attention_backward_loops.h"
#include "graph/kernels/gelu_loops.h"
#include "graph/kernels/layer_norm_loops.h"
#include "graph/kernels/lstm_loops.h"
#include "graph/kernels/max_pool_loops.h"
#include "graph/kernels/pointwise_loops.h"

namespace duet {

CpuKernels avx2_kernels() {
  CpuKernels kernels = kNoKernels;
  kernels.gemm = multiply_part;
  kernels.max_pool = {max_pool_forward, max_pool_backward};
  kernels.batch_norm = {batch_norm_statistics, batch_norm_normalize, batch_norm_backward};
  kernels.conv = kConvKernels;
  kernels.lstm = kLstmKernels;
  kernels.pointwise = kPointwiseKernels;
  kernels.rows = {column_sum, layer_norm_forward, layer_norm_backward, add_norm_parts};
  kernels.gelu_erf = {gelu_erf_forward, gelu_erf_backward};
  kernels.gelu_tanh = {gelu_forward, gelu_backward};
  if (!find_vector_functions()) return kernels;
  kernels.softmax = {softmax, log_softmax, log_softmax_backward, attention_forward, attention_backward};
  return kernels;
}

}  // namespace duet
