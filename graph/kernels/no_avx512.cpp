#include "graph/kernels/fast_kernels.h"
#include "graph/kernels/image_kernels.h"
#include "graph/kernels/pointwise_kernels.h"
#include "graph/kernels/row_kernels.h"

// Another kind of CPU, or a compiler without AVX-512: ATen's kernels run.

namespace duet {

GemmKernel gemm_kernel_avx512() { return nullptr; }

GeluKernels gelu_kernels_avx512() { return {}; }

ImageKernels image_kernels_avx512() { return {}; }
SoftmaxKernels softmax_kernels_avx512() { return {}; }

PointwiseKernels pointwise_kernels_avx512() { return {}; }

}  // namespace duet
