#pragma once

#include <ATen/core/Tensor.h>
#include "graph/kernels/image_kernels.h"

namespace duet {

struct BatchNormTensors {
  at::Tensor x, weight, bias, running_mean, running_variance;  // all but x may be undefined
  at::Tensor y, mean, inverse_std;                             // results
  double momentum = 0, epsilon = 0;
};

struct BatchNormGradTensors {
  at::Tensor grad, x, weight, mean, inverse_std;  // weight may be undefined
  at::Tensor grad_x, grad_weight, grad_bias;      // results; undefined: not wanted
};

// As this LibTorch rounds on this CPU; empty: none.
BatchNormKernels fast_batch_norm_kernels();

// Run with LibTorch's number of threads.
void run_batch_norm_forward(const BatchNormKernels& kernels, const BatchNormTensors& tensors);
void run_batch_norm_backward(const BatchNormKernels& kernels, const BatchNormGradTensors& tensors);

// Whether `kernels` give this LibTorch's bits. The order of its sums is known; which products its compiler fused into
// sums, and which of two NaN a sum gives, is seen on a few shapes.
bool batch_norm_is_bitexact(const BatchNormKernels& kernels);

}  // namespace duet
