#pragma once

#include <cstdint>

namespace duet {

// How each element of a product is summed up, with one rounding per fma:
//   sum = before[j];  for each block: part = 0, part = fma(a[i][k], b[k][j], part) ...; sum += part;  sum += after[j]
// Which of several NaN it hands on is left to BLAS.
struct GemmOrder {
  int64_t k_block = 0;    // terms in a block; 0: no order is known
  bool from_zero = true;  // without `before`, sum starts as 0; false: as the first part, so that a -0 is kept
};

// c = a b, plus a row vector: float matrices given by address and strides in elements.
struct Gemm {
  int64_t m = 0, n = 0, k = 0;
  const float* a = nullptr;
  int64_t a_row = 0, a_column = 0;
  const float* b = nullptr;
  int64_t b_row = 0, b_column = 0;  // one of them is 1
  float* c = nullptr;
  int64_t c_row = 0;              // its columns lie side by side
  const float* before = nullptr;  // null: see GemmOrder
  const float* after = nullptr;   // null: nothing is added
  GemmOrder order;
};

constexpr int64_t kPanelColumns = 64;  // of b, which a kernel works on at a time

// Rows of a that a kernel works on at a time, and of a copy of them: its most terms, by how much its lines are longer
// than what they hold, its floats.
constexpr int64_t kChunkRows = 96, kMostCopiedTerms = 512, kLineGap = 16;
constexpr int64_t kChunkFloats = (kMostCopiedTerms + kLineGap) * (kChunkRows + kLineGap);

// A part of c: rows [begin, end) and columns [begin, end).
struct GemmPart {
  int64_t row_begin, row_end, column_begin, column_end;
};

// Computes one part. `scratch` holds kChunkFloats + order.k_block * kPanelColumns floats at a 64-byte boundary. False:
// it has a NaN.
using GemmKernel = bool (*)(const Gemm& gemm, const GemmPart& part, float* scratch);

}  // namespace duet
