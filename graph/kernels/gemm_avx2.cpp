#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/gemm_loops.h"
#include "graph/kernels/instruction_sets.h"

namespace duet {

GemmKernel avx2::gemm_kernel() { return multiply_part; }

}  // namespace duet
