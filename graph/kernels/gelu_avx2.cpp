#include "graph/kernels/avx2_simd.h"
#include "graph/kernels/gelu_loops.h"
#include "graph/kernels/instruction_sets.h"

namespace duet {

GeluKernels avx2::gelu_kernels() { return duet::gelu_kernels("Sleef_tanhf8_u10"); }

}  // namespace duet
