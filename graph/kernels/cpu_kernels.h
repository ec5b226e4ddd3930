#pragma once

#include "graph/kernels/conv_kernels.h"
#include "graph/kernels/gemm_kernel.h"
#include "graph/kernels/image_kernels.h"
#include "graph/kernels/lstm_kernels.h"
#include "graph/kernels/pointwise_kernels.h"
#include "graph/kernels/row_kernels.h"

// Kernels of duet's own in place of ATen's: same bits, less time. That they keep this promise is tried or proved before
// they are used. These headers include nothing but <cstdint>: the files behind them are compiled for one kind of CPU,
// and an inline function of the standard library that they share with others would be too.

namespace duet {

// What is compiled for one instruction set; null: not for this CPU, compiler or LibTorch.
struct CpuKernels {
  GemmKernel gemm = nullptr;
  GeluKernels gelu_tanh, gelu_erf;  // approximate = "tanh", "none"
  MaxPoolKernels max_pool;
  BatchNormKernels batch_norm;
  ConvKernels conv;
  LstmKernels lstm;
  PointwiseKernels pointwise;
  RowKernels rows;
  SoftmaxKernels softmax;
};
inline constexpr CpuKernels kNoKernels{};  // a constant: a constructor would be a function that both files share
CpuKernels avx2_kernels();
CpuKernels avx512_kernels();

// In the instructions that ATen computes with, whose vectors' width can decide how it rounds; so none of this code runs
// on a CPU that lacks them. ATEN_CPU_CAPABILITY=avx2 imitates a CPU without AVX-512.
const CpuKernels& cpu_kernels();

// Whether kernels give this LibTorch's bits with the present number of threads: on plain, huge, tiny and special
// numbers, in lengths around those of vectors. Where no BLAS takes part a few shapes tell for all.
bool gelu_is_bitexact(const GeluKernels& kernels, const char* approximate);
bool max_pool_is_bitexact(const MaxPoolKernels& kernels);
bool adamw_is_bitexact(const PointwiseKernels& kernels);
bool bernoulli_is_bitexact(const PointwiseKernels& kernels);  // drawn from a generator of its own
bool rows_are_bitexact(const PointwiseKernels& kernels);      // embedding, its backward and cat

}  // namespace duet
