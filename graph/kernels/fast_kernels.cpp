#include "graph/kernels/fast_kernels.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/instruction_sets.h"

namespace duet {

GemmKernel gemm_kernel_avx512() { return has_avx512() ? avx512::gemm_kernel() : nullptr; }
GemmKernel gemm_kernel_avx2() { return has_avx2() ? avx2::gemm_kernel() : nullptr; }
GemmKernel fast_gemm_kernel() { return atens_choice(gemm_kernel_avx512(), gemm_kernel_avx2()); }

GeluKernels gelu_kernels_avx512() { return has_avx512() ? avx512::gelu_kernels() : GeluKernels(); }
GeluKernels gelu_kernels_avx2() { return has_avx2() ? avx2::gelu_kernels() : GeluKernels(); }
GeluKernels fast_gelu_kernels() { return atens_choice(gelu_kernels_avx512(), gelu_kernels_avx2()); }

ImageKernels image_kernels_avx512() { return has_avx512() ? avx512::image_kernels() : ImageKernels(); }
ImageKernels image_kernels_avx2() { return has_avx2() ? avx2::image_kernels() : ImageKernels(); }

PointwiseKernels pointwise_kernels_avx512() { return has_avx512() ? avx512::pointwise_kernels() : PointwiseKernels(); }
PointwiseKernels pointwise_kernels_avx2() { return has_avx2() ? avx2::pointwise_kernels() : PointwiseKernels(); }

SoftmaxKernels softmax_kernels_avx512() { return has_avx512() ? avx512::softmax_kernels() : SoftmaxKernels(); }
SoftmaxKernels softmax_kernels_avx2() { return has_avx2() ? avx2::softmax_kernels() : SoftmaxKernels(); }

RowKernels row_kernels_avx2() { return has_avx2() ? avx2::row_kernels() : RowKernels(); }

}  // namespace duet
