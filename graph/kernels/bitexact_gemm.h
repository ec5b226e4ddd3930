#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include "graph/kernels/gemm_kernel.h"
#include "graph/kernels/row_kernels.h"
#include "graph/kernels/trial_data.h"

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

// Of the BLAS that ATen calls, looked up from the library that holds ATen: a program may have another one. Null: none.
Sgemm blas_sgemm();

// Runs `kernel` with LibTorch's number of threads.
class GemmRunner {
 public:
  GemmRunner(GemmKernel kernel, const GemmTensors& tensors, const GemmOrder& order);
  // False: a result is NaN, and LibTorch's kernels are to choose its bits.
  bool run(const GemmTensors& tensors) const;

 private:
  GemmPart part(int64_t index) const;

  GemmKernel kernel_;
  Gemm gemm_;
  int64_t row_parts_ = 1, column_parts_ = 1;
};

// The order of summation of this LibTorch's gemm of such tensors (same sizes, strides and alignment), if it is proved
// (order_is_proved) and `kernel` takes no more time; otherwise its k_block is 0. Found on other memory, once for
// tensors that are alike, if `kernels` may try.
GemmOrder bitexact_gemm_order(const GemmTensors& tensors, GemmKernel kernel, BitexactKernels& kernels);

// The order with this block of k that LibTorch's gemm of such tensors seems to have in how sums start.
GemmOrder likely_order(const GemmTensors& like, int64_t k_block);

// Whether LibTorch's gemm of such tensors (same sizes, strides and alignment) sums up each element in that order, and
// `kernel` too: shown by probes of the order (gemm_probes.h), and by numbers with zeros, infinities, NaN and denormals
// among them, of which the kernel need only find that there are NaN. In a small gemm each element gets all probes. In a
// large one neighbouring rows share them, so that each probe is in each neighbourhood and each element has some.
bool order_is_proved(const GemmTensors& like, GemmKernel kernel, const GemmOrder& order);

// The same gemm in memory of its own, on such numbers.
GemmTensors trial_copies(const GemmTensors& like, TrialNumbers numbers = TrialNumbers::kPlain);

// What LibTorch's kernels make of the tensors.
void compute_as_aten(const GemmTensors& tensors);

// Whether the kernel gives the bits of `expected`, which LibTorch's kernels have computed, and says whether it has NaN.
bool gives_the_bits_of(const at::Tensor& expected, const GemmRunner& runner, const GemmTensors& tensors);

}  // namespace duet
