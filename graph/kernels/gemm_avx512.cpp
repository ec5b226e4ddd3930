#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/gemm_loops.h"
#include "graph/kernels/instruction_sets.h"

namespace duet {

GemmKernel avx512::gemm_kernel() { return multiply_part; }

}  // namespace duet
