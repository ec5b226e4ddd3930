#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/batch_norm_backward_loops.h"
#include "graph/kernels/batch_norm_forward_loops.h"
#include "graph/kernels/instruction_sets.h"
#include "graph/kernels/max_pool_loops.h"

namespace duet {

ImageKernels avx2::image_kernels() {
  return {{max_pool_forward, max_pool_backward}, {batch_norm_forward, batch_norm_backward}};
}

}  // namespace duet
