#pragma once

#include <cstdint>

// Kernels of duet's own in place of ATen's: same bits, less time. That they keep this promise is checked before they
// are used (bitexact_gemm.cpp, bitexact_gelu_tanh.cpp). No includes but the above: the files behind this header
// are compiled for one kind of CPU, and an inline function of the standard library that they share with others would be
// too.

namespace duet {

// c = a b, plus a row vector: float matrices given by address and strides in elements.
//
// Each element of c is summed up like this, with one rounding per fma, in `k_block` terms at a time:
//   sum = before[j];  for each block: part = 0, part = fma(a[i][k], b[k][j], part) ...; sum += part;  sum += after[j]
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t a_row = 0, a_column = 0;
  const float* b = nullptr;
  int64_t b_row = 0, b_column = 0;  // one of them is 1
  float* c = nullptr;
  int64_t c_row = 0;              // its columns lie side by side
  const float* before = nullptr;  // null: zeros
  const float* after = nullptr;   // null: nothing is added
  int64_t k_block = 0;
};

constexpr int64_t kPanelColumns = 64;  // of b, which a kernel works on at a time

// A part of c: rows [begin, end) and columns [begin, end).
struct GemmPart {
  int64_t row_begin, row_end, column_begin, column_end;
};

// Computes one part. `scratch` holds k_block * kPanelColumns floats at a 64-byte boundary.
using GemmKernel = void (*)(const Gemm& gemm, const GemmPart& part, float* scratch);
GemmKernel fast_gemm_kernel();  // null: none for this CPU

// gelu(x, approximate="tanh") and its gradient; the tanh that both need is computed once and handed over in `tanh`.
struct GeluKernels {
  void (*forward)(const float* x, float* tanh, float* y, int64_t count) = nullptr;
  void (*backward)(const float* grad, const float* x, const float* tanh, float* grad_x, int64_t count) = nullptr;
};
GeluKernels fast_gelu_kernels();  // null: none for this CPU and LibTorch

}  // namespace duet
