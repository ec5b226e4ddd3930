#pragma once

#include "graph/kernels/bitexact_gemm.h"
#include "graph/kernels/trial_data.h"

namespace duet {

// The order with this block of k that LibTorch's gemm of such tensors seems to have in what blocks leave open: how sums
// start, and which NaN goes first.
GemmOrder likely_order(const GemmTensors& like, int64_t k_block);

// Whether LibTorch's gemm of such tensors (same sizes, strides and alignment) sums up each element in that order, and
// `kernel` too: shown by probes of the order (gemm_probes.h), and by numbers with zeros, infinities, NaN and denormals
// among them. In a small gemm each element gets all probes. In a large one neighbouring rows share them, so that each
// probe is in each neighbourhood and each element has some.
bool order_is_proved(const GemmTensors& like, GemmKernel kernel, const GemmOrder& order);

// The order that is proved, whether `kernel` takes less time or not; without one its k_block is 0.
GemmOrder proved_gemm_order(const GemmTensors& tensors, GemmKernel kernel);

// The same gemm in memory of its own, on such numbers.
GemmTensors trial_copies(const GemmTensors& like, TrialNumbers numbers = TrialNumbers::kPlain);

// What LibTorch's kernels make of the tensors.
void compute_as_aten(const GemmTensors& tensors);

}  // namespace duet
