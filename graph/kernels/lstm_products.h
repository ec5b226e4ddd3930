#pragma once

#include "graph/kernels/gemm_loops.h"
#include "graph/kernels/lstm_kernels.h"

// Products in the orders of oneDNN's without copies (jit_avx_gemm_f32, jit_avx512_common_gemm_f32), over the vectors of
// avx2_simd.h. With AVX2 columns are taken by 16, rows by 6, and each element is one chain of multiply-adds. But where
// at most 3 rows or 8 columns are left, even terms and odd ones are summed up apart, and by additions of rounded
// products where at most 2 rows are.

namespace duet {

namespace {

constexpr int64_t kOneDnnRows = 6, kOneDnnColumns = 16;
static_assert(kTileColumns == kOneDnnColumns && tile_rows(kTileVectors) == kOneDnnRows);

// The terms of the next block where so many are left: all if they are few, halves where two blocks are not full.
inline int64_t terms_of_block(int64_t left, int64_t most) {
  if (left >= 2 * most) return most;
  return left > most ? (left + 1) / 2 : left;
}

// As many rows as a product has, and as a thread of oneDNN's takes.
struct RowsTogether {
  int64_t rows, of_thread;
  bool by_parity;
};
// Calls use(begin, end, together) for those that are taken together with as many others; 0: the order is the usual one.
template <class Use>
void for_rows_together(const RowsTogether& all, const IndexRange& range, const Use& use) {
  constexpr int64_t kBlock = 48;
  const auto use_range = [&](int64_t begin, int64_t end, int64_t together) {
    const int64_t from = begin > range.begin ? begin : range.begin, to = end < range.end ? end : range.end;
    if (from < to) use(from, to, together);
  };
  int64_t size = 0;
  for (int64_t begin = 0; begin < all.rows; begin += size) {
    const int64_t left = smaller_of(all.rows, (begin / all.of_thread + 1) * all.of_thread) - begin;
    size = left >= 2 * kBlock ? kBlock : left > kBlock + kBlock / 2 ? (left + 1) / 2 : left;
    const int64_t last = size % kOneDnnRows, together = all.by_parity && last <= kOneDnnRows / 2 ? last : 0;
    use_range(begin, begin + size - together, 0);
    use_range(begin + size - together, begin + size, together);
  }
}

template <bool kFused, int kRows, int kVectors>
void compute_by_parity(const Tile& tile) {
  const auto term = [](Floats factor, Floats row, Floats sum) {
    return kFused ? add_product(factor, row, sum) : add(sum, multiply(factor, row));
  };
  Floats sums[2][kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows * kVectors; ++i) {
    sums[0][i / kVectors][i % kVectors] = sums[1][i / kVectors][i % kVectors] = broadcast(0.0F);
  }
  const auto add_term = [&](int64_t k, Floats(&to)[kRows][kVectors]) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      const Floats row = load(tile.b + k * tile.b_row + j * kLanes);
#pragma GCC unroll 3
      for (int i = 0; i < kRows; ++i) {
        to[i][j] = term(broadcast(tile.a[i * tile.a_row + k * tile.a_column]), row, to[i][j]);
      }
    }
  };
  int64_t k = 0;
  for (; k + 1 < tile.k; k += 2) {
    add_term(k, sums[0]);
    add_term(k + 1, sums[1]);
  }
#pragma GCC unroll 12
  for (int i = 0; i < kRows * kVectors; ++i) {
    Floats& sum = sums[0][i / kVectors][i % kVectors];
    sum = add(sum, sums[1][i / kVectors][i % kVectors]);
  }
  if (k < tile.k) add_term(k, sums[0]);
  store<kRows, kVectors>(tile, sums[0]);
}

template <bool kFused, int kVectors>
void multiply_rows_by_parity(Tile tile, int64_t begin, int64_t end) {
  constexpr int64_t kMost = 3;
  const float* const a = tile.a;
  float* const c = tile.c;
  for (int64_t i = begin; i < end; i += kMost) {
    tile.a = a + i * tile.a_row;
    tile.c = c + i * tile.c_row;
    const int64_t rows = smaller_of(end - i, kMost);
    if (rows == 1) compute_by_parity<kFused, 1, kVectors>(tile);
    if (rows == 2) compute_by_parity<kFused, 2, kVectors>(tile);
    if (rows == 3) compute_by_parity<kFused, 3, kVectors>(tile);
  }
}

// Rows [begin, end) times the columns of the tile, which is that of row 0.
inline void multiply_by_parity(const Tile& tile, const IndexRange& rows, int64_t together, int64_t columns) {
  const bool few_columns = columns <= kLanes, fused = together == 0 || together == 3;
  const auto multiply = few_columns ? fused ? multiply_rows_by_parity<true, 1> : multiply_rows_by_parity<false, 1>
                        : fused     ? multiply_rows_by_parity<true, 2>
                                    : multiply_rows_by_parity<false, 2>;
  multiply(tile, rows.begin, rows.end);
}

inline void lstm_pack(LstmProduct& p, const float* b, bool transposed, float* panels) {
  const int64_t row = transposed ? 1 : p.columns, column = transposed ? p.depth : 1;
  copy_block({.b = b, .b_row = row, .b_column = column}, {0, p.depth, 0, p.columns}, panels);
  p.panels = panels, p.panel = p.depth * kTileColumns;
}

inline bool lstm_multiply(const LstmProduct& p, const IndexRange& rows) {
  NanWatch nan;
  int64_t terms = 0;
  for (int64_t k = 0; k < p.depth; k += terms) {
    terms = terms_of_block(p.depth - k, p.terms);
    for (int64_t j = 0; j < p.columns; j += kTileColumns) {
      const int64_t columns = smaller_of(p.columns - j, kTileColumns);
      Tile tile{};
      tile.a = p.a + k * p.a_column, tile.a_row = p.a_row, tile.a_column = p.a_column;
      tile.b = p.panels + j / kTileColumns * p.panel + k * kTileColumns, tile.b_row = kTileColumns;
      tile.c = p.c + j, tile.c_row = p.columns;
      tile.k = terms;
      tile.has_sum = p.adds || k > 0;
      tile.last_columns = (columns - 1) % kLanes + 1;
      tile.nan = &nan;
      const auto multiply = [&](int64_t begin, int64_t end, int64_t together) {
        const bool by_parity = p.by_parity && (together > 0 || columns <= kLanes);
        by_parity ? multiply_by_parity(tile, {begin, end}, together, columns)
                  : multiply_rows(tile, begin, end, (columns + kLanes - 1) / kLanes);
      };
      for_rows_together({p.rows, p.rows_of_thread, p.by_parity}, rows, multiply);
    }
  }
  return !nan.any();
}

}  // namespace

}  // namespace duet
