#include "graph/kernels/fast_kernels.h"
#include "graph/kernels/bitexact_kernel.h"

namespace duet {

GemmKernel fast_gemm_kernel() { return atens_choice(gemm_kernel_avx512(), gemm_kernel_avx2()); }

GeluKernels fast_gelu_kernels() { return atens_choice(gelu_kernels_avx512(), gelu_kernels_avx2()); }

}  // namespace duet
