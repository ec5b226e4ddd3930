#include "graph/kernels/instruction_sets.h"

// Another kind of CPU, or a compiler without AVX2: ATen's kernels run.

namespace duet {

GemmKernel avx2::gemm_kernel() { return nullptr; }

GeluKernels avx2::gelu_kernels() { return {}; }

ImageKernels avx2::image_kernels() { return {}; }

PointwiseKernels avx2::pointwise_kernels() { return {}; }
RowKernels avx2::row_kernels() { return {}; }
SoftmaxKernels avx2::softmax_kernels() { return {}; }

}  // namespace duet
