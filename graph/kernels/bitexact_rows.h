#pragma once

#include <vector>
#include <ATen/core/Tensor.h>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/row_kernels.h"

// The table of kernels over rows, and what they ask of tensors.

namespace duet {

// Sums of columns and layer norm; softmax and the negative log-likelihood; attention.
const std::vector<CallKernelMaker>& row_sum_kernels();
const std::vector<CallKernelMaker>& loss_kernels();
const std::vector<CallKernelMaker>& attention_kernels();

const SoftmaxKernels& softmax_kernels();  // in ATen's instructions

// The tensor as rows that are `width` wide; none if it cannot be or is too large for the kernels.
RowShape rows_of(const at::Tensor& x, int64_t width);

}  // namespace duet
