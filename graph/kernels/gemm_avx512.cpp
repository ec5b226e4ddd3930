#include "graph/kernels/avx512_simd.h"
#include "graph/kernels/fast_kernels.h"

// Compiled with AVX-512 instructions: nothing here runs before fast_gemm_kernel() has asked the CPU.
//
// A tile of up to 6 rows and 64 columns of c stays in registers while k runs through a block. Rows of b that lie side
// by side in memory are read in place; a transposed b is copied into the scratch panel first.

namespace duet {

namespace {

constexpr int kTileRows = 6;
constexpr int kTileVectors = static_cast<int>(kPanelColumns) / kLanes;

struct Tile {
  const float* a;
  int64_t a_row, a_column;
  const float* b;
  int64_t b_row;
  float* c;
  int64_t c_row;
  int64_t k;
  const float* before;  // of the first block of k
  const float* after;   // of the last block of k
  bool has_sum;         // c holds the blocks before, or adds to zero
  bool first;
  __mmask16 last_columns;  // of the tile's last vector
};

template <int kVectors>
__mmask16 lanes(const Tile& tile, int vector) {
  return vector == kVectors - 1 ? tile.last_columns : static_cast<__mmask16>(0xFFFF);
}

// Of two NaN factors the first one is the result, before that of the sum.
[[gnu::always_inline]] inline __m512 add_product(__m512 first, __m512 second, __m512 sum) {
  asm("vfmadd231ps %2, %1, %0" : "+v"(sum) : "v"(first), "v"(second));
  return sum;
}

template <int kRows, int kVectors>
[[gnu::always_inline]] inline void store(const Tile& tile, const __m512 (&sums)[kRows][kVectors]) {
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    const __mmask16 mask = lanes<kVectors>(tile, j);
    const auto row_vector = [&](const float* v) {
      return v != nullptr ? _mm512_maskz_loadu_ps(mask, v + j * kLanes) : _mm512_setzero_ps();
    };
    const __m512 before = row_vector(tile.before);
    const __m512 after = row_vector(tile.after);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      float* c = tile.c + i * tile.c_row + j * kLanes;
      const __m512 start = tile.first ? before : _mm512_maskz_loadu_ps(mask, c);
      __m512 sum = tile.has_sum ? add(start, sums[i][j]) : sums[i][j];
      if (tile.after != nullptr) sum = add(after, sum);  // adding zeros would turn -0 into 0
      _mm512_mask_storeu_ps(c, mask, sum);
    }
  }
}

template <bool kBIsFirst, int kRows, int kVectors>
void compute(const Tile& tile) {
  __m512 sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) sums[i][j] = _mm512_setzero_ps();
  }
  const float* a = tile.a;
  const float* b = tile.b;
  for (int64_t k = 0; k < tile.k; ++k, a += tile.a_column, b += tile.b_row) {
    __m512 row[kVectors];
#pragma GCC unroll 8
    for (int j = 0; j < kVectors; ++j) row[j] = _mm512_maskz_loadu_ps(lanes<kVectors>(tile, j), b + j * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const __m512 factor = _mm512_set1_ps(a[i * tile.a_row]);
#pragma GCC unroll 8
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = kBIsFirst ? add_product(row[j], factor, sums[i][j]) : add_product(factor, row[j], sums[i][j]);
      }
    }
  }
  store<kRows, kVectors>(tile, sums);
}

using Compute = void (*)(const Tile&);
template <bool kBIsFirst>
constexpr Compute kCompute[kTileVectors][kTileRows] = {
    {compute<kBIsFirst, 1, 1>, compute<kBIsFirst, 2, 1>, compute<kBIsFirst, 3, 1>, compute<kBIsFirst, 4, 1>,
     compute<kBIsFirst, 5, 1>, compute<kBIsFirst, 6, 1>},
    {compute<kBIsFirst, 1, 2>, compute<kBIsFirst, 2, 2>, compute<kBIsFirst, 3, 2>, compute<kBIsFirst, 4, 2>,
     compute<kBIsFirst, 5, 2>, compute<kBIsFirst, 6, 2>},
    {compute<kBIsFirst, 1, 3>, compute<kBIsFirst, 2, 3>, compute<kBIsFirst, 3, 3>, compute<kBIsFirst, 4, 3>,
     compute<kBIsFirst, 5, 3>, compute<kBIsFirst, 6, 3>},
    {compute<kBIsFirst, 1, 4>, compute<kBIsFirst, 2, 4>, compute<kBIsFirst, 3, 4>, compute<kBIsFirst, 4, 4>,
     compute<kBIsFirst, 5, 4>, compute<kBIsFirst, 6, 4>},
};

// panel[k][j] = b[k][j] of a b whose columns lie side by side.
void copy_transposed(const float* b, int64_t b_column, int64_t depth, int64_t columns, float* panel) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    for (int64_t k = 0; k < depth; k += kLanes) {
      const int64_t terms = depth - k < kLanes ? depth - k : kLanes;
      const auto mask = static_cast<__mmask16>((1U << terms) - 1);
      __m512 rows[kLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        rows[i] = j + i < columns ? _mm512_maskz_loadu_ps(mask, b + (j + i) * b_column + k) : _mm512_setzero_ps();
      }
      transpose(rows);
      for (int64_t i = 0; i < terms; ++i) _mm512_store_ps(panel + (k + i) * kPanelColumns + j, rows[i]);
    }
  }
}

// All rows of the part times up to 64 columns of b, for the terms [k, k + depth).
void multiply_panel(const Gemm& g, const GemmPart& part, int64_t k, int64_t j, float* scratch) {
  const int64_t depth = g.k - k < g.order.k_block ? g.k - k : g.order.k_block;
  const int64_t columns = part.column_end - j < kPanelColumns ? part.column_end - j : kPanelColumns;
  const int64_t vectors = (columns + kLanes - 1) / kLanes;
  const bool first = k == 0;
  const bool last = k + depth == g.k;
  Tile tile{nullptr,
            g.a_row,
            g.a_column,
            g.b + k * g.b_row + j,
            g.b_row,
            nullptr,
            g.c_row,
            depth,
            first && g.before != nullptr ? g.before + j : nullptr,
            last && g.after != nullptr ? g.after + j : nullptr,
            !first || g.before != nullptr || g.order.from_zero,
            first,
            static_cast<__mmask16>((1U << (columns - (vectors - 1) * kLanes)) - 1)};
  if (g.b_column != 1) {
    copy_transposed(g.b + k + j * g.b_column, g.b_column, depth, columns, scratch);
    tile.b = scratch;
    tile.b_row = kPanelColumns;
  }
  const auto& kernels = g.order.b_is_first ? kCompute<true> : kCompute<false>;
  for (int64_t i = part.row_begin; i < part.row_end; i += kTileRows) {
    const int64_t rows = part.row_end - i < kTileRows ? part.row_end - i : kTileRows;
    tile.a = g.a + i * g.a_row + k * g.a_column;
    tile.c = g.c + i * g.c_row + j;
    kernels[vectors - 1][rows - 1](tile);
  }
}

void multiply_part(const Gemm& gemm, const GemmPart& part, float* scratch) {
  for (int64_t k = 0; k < gemm.k; k += gemm.order.k_block) {
    for (int64_t j = part.column_begin; j < part.column_end; j += kPanelColumns)
      multiply_panel(gemm, part, k, j, scratch);
  }
}

}  // namespace

GemmKernel fast_gemm_kernel() { return __builtin_cpu_supports("avx512f") ? multiply_part : nullptr; }

}  // namespace duet
