#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>
#include "graph/kernels/fast_kernels.h"

namespace duet {

// out = a b, with a bias in one of two places, as an instruction computes it.
struct GemmTensors {
  at::Tensor a, b, out;
  at::Tensor before;  // addmm: the sums start from it
  at::Tensor after;   // mm, then add_: added to the finished sums
};

// Whether duet's kernel can address these tensors: matrices of floats, rows of `out` and either rows or columns of `b`
// without gaps, biases of one row.
bool can_address(const GemmTensors& tensors);

struct OpCall;
struct BitexactKernels;
// mm(a, b, out), or addmm(bias, a, b, beta = 1, alpha = 1, out); undefined tensors for anything else.
GemmTensors gemm_of(const OpCall& call);

// Runs `kernel` with LibTorch's number of threads.
class GemmRunner {
 public:
  GemmRunner(GemmKernel kernel, const GemmTensors& tensors, const GemmOrder& order);
  void run(const GemmTensors& tensors) const;

 private:
  GemmPart part(int64_t index) const;

  GemmKernel kernel_;
  Gemm gemm_;
  int64_t row_parts_ = 1, column_parts_ = 1;
};

// The order of summation of this LibTorch's gemm of such tensors (same sizes, strides and alignment), if it is proved
// (order_is_proved) and `kernel` takes less time; otherwise its k_block is 0. Found on other memory, once for tensors
// that are alike, if `kernels` may try.
GemmOrder bitexact_gemm_order(const GemmTensors& tensors, GemmKernel kernel, BitexactKernels& kernels);
// What decides about it beside the kernel.
std::vector<int64_t> trial_key(const GemmTensors& tensors);

}  // namespace duet
