#include "graph/kernels/fast_kernels.h"
#include "graph/kernels/image_kernels.h"
#include "graph/kernels/pointwise_kernels.h"
#include "graph/kernels/row_kernels.h"

// Another kind of CPU, or a compiler without AVX2: ATen's kernels run.

namespace duet {

GemmKernel gemm_kernel_avx2() { return nullptr; }

GeluKernels gelu_kernels_avx2() { return {}; }

ImageKernels image_kernels_avx2() { return {}; }

PointwiseKernels pointwise_kernels_avx2() { return {}; }
RowKernels row_kernels_avx2() { return {}; }
SoftmaxKernels softmax_kernels_avx2() { return {}; }

}  // namespace duet
