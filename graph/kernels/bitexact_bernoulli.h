#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include "graph/kernels/pointwise_kernels.h"

namespace duet {

// y = bernoulli(p) / divisor, as dropout has it.
struct BernoulliCall {
  at::Tensor y;
  double p = 0;
  float divisor = 1;
};

// Leaves the generator as ATen would.
void run_bernoulli(const PointwiseKernels& kernels, const BernoulliCall& call, at::CPUGeneratorImpl& generator);

// Whether `kernels` draw this LibTorch's numbers, from a generator of their own: the default one belongs to the model.
bool bernoulli_is_bitexact(const PointwiseKernels& kernels);

}  // namespace duet
