#pragma once

#include <functional>
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/pointwise_kernels.h"

namespace duet {

// What does the work of an embedding, its backward or a cat of tensors without gaps; empty if the call is none.
std::function<void()> make_rows_kernel(const OpCall& call, PointwiseKernel add);

// Whether they give this LibTorch's bits. Nothing is rounded but sums of two, so a few shapes tell for all.
bool rows_are_bitexact(PointwiseKernel add);

}  // namespace duet
