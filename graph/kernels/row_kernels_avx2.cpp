#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/column_sum_loops.h"
#include "graph/kernels/instruction_sets.h"
#include "graph/kernels/layer_norm_backward_loops.h"
#include "graph/kernels/layer_norm_loops.h"

namespace duet {

RowKernels avx2::row_kernels() { return {column_sum, layer_norm_forward, layer_norm_backward}; }

}  // namespace duet
