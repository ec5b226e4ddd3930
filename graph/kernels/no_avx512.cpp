#include "graph/kernels/instruction_sets.h"

// Another kind of CPU, or a compiler without AVX-512: ATen's kernels run.

namespace duet {

GemmKernel avx512::gemm_kernel() { return nullptr; }

GeluKernels avx512::gelu_kernels() { return {}; }

ImageKernels avx512::image_kernels() { return {}; }
SoftmaxKernels avx512::softmax_kernels() { return {}; }

PointwiseKernels avx512::pointwise_kernels() { return {}; }

}  // namespace duet
