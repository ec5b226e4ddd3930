#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/batch_norm_forward_loops.h"
#include "graph/kernels/instruction_sets.h"
#include "graph/kernels/max_pool_tiles.h"

namespace duet {

ImageKernels avx512::image_kernels() {
  return {{max_pool_forward, max_pool_backward_in_tiles}, {batch_norm_forward, nullptr}};
}

}  // namespace duet
