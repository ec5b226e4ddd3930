#pragma once

#include "graph/kernels/pointwise_kernels.h"

namespace duet {

// Whether `kernels` do the step that this LibTorch's fused AdamW does, with one thread.
bool adamw_is_bitexact(const PointwiseKernels& kernels);

}  // namespace duet
