#pragma once

#include "graph/kernels/bitexact_gemm.h"

namespace duet {

// The block of k with which `kernel` gives the bits of this LibTorch's gemm of such tensors (same sizes, strides and
// alignment) and takes less time; 0 if there is none. Tried on other memory, once for tensors that are alike.
int64_t bitexact_k_block(const GemmTensors& tensors, GemmKernel kernel);

}  // namespace duet
