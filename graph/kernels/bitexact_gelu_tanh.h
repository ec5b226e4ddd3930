#pragma once

#include <ATen/core/Tensor.h>
#include "graph/kernels/fast_kernels.h"

namespace duet {

// Whether `kernels` give the bits of this LibTorch's gelu(tanh) and its backward, with the present number of threads:
// on plain, huge, tiny and special numbers, in all lengths up to some vectors and in some that several threads share.
bool gelu_kernels_are_bitexact(const GeluKernels& kernels);

// Run like ATen's: what a thread computes is a range of its own, and how the last elements of a range are rounded
// depends on where it ends.
void run_gelu_forward(const GeluKernels& kernels, const at::Tensor& x, const at::Tensor& tanh, const at::Tensor& y);
void run_gelu_backward(const GeluKernels& kernels, const at::Tensor& grad, const at::Tensor& x, const at::Tensor& tanh,
                       const at::Tensor& grad_x);

}  // namespace duet
