#pragma once

#include "graph/kernels/fast_kernels.h"
#include "graph/kernels/image_kernels.h"
#include "graph/kernels/pointwise_kernels.h"
#include "graph/kernels/row_kernels.h"

// What the files give that are compiled for one instruction set. None of their code, these functions included, may run
// before the CPU was asked (fast_kernels.cpp).

namespace duet {

bool has_avx512();
bool has_avx2();

}  // namespace duet

namespace duet::avx512 {

GemmKernel gemm_kernel();
GeluKernels gelu_kernels();  // empty, as all of these: not for this LibTorch or compiler
ImageKernels image_kernels();
PointwiseKernels pointwise_kernels();
SoftmaxKernels softmax_kernels();

}  // namespace duet::avx512

namespace duet::avx2 {

GemmKernel gemm_kernel();
GeluKernels gelu_kernels();
ImageKernels image_kernels();
PointwiseKernels pointwise_kernels();
RowKernels row_kernels();
SoftmaxKernels softmax_kernels();

}  // namespace duet::avx2
