#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/gelu_loops.h"
#include "graph/kernels/instruction_sets.h"

namespace duet {

GeluKernels avx512::gelu_kernels() { return duet::gelu_kernels("Sleef_tanhf16_u10"); }

}  // namespace duet
