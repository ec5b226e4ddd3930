#pragma once

#include <ATen/core/Tensor.h>
#include "graph/kernels/image_kernels.h"

namespace duet {

// x -> (y, indices), or backward: (y, indices) -> x, where x and y hold gradients.
struct MaxPoolTensors {
  at::Tensor x, y, indices;
};

MaxPoolKernels fast_max_pool_kernels();  // empty: none for this CPU

// Run with LibTorch's number of threads.
void run_max_pool_forward(const MaxPoolKernels& kernels, const MaxPool& pool, const MaxPoolTensors& tensors);
void run_max_pool_backward(const MaxPoolKernels& kernels, const MaxPool& pool, const MaxPoolTensors& tensors);

// Whether `kernels` give this LibTorch's bits. Nothing is rounded but the sums of windows that overlap, so a few shapes
// tell for all.
bool max_pool_is_bitexact(const MaxPoolKernels& kernels);

}  // namespace duet
