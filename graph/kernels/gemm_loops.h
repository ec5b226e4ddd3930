#pragma once

#include "graph/kernels/gemm_kernel.h"

// Products, over the vectors of avx2_simd.h or avx512_simd.h.
//
// A tile of c that fills the registers stays in them while k runs through a block.
// Rows of b that lie side by side in memory are read in place if they fill vectors and, with AVX2, few rows of a ask
// for them; others are copied into the scratch panel first.

namespace duet {

namespace {

constexpr int kTileVectors = kLanes == 16 ? 4 : 2;  // of 32 registers, or of 16
constexpr int64_t kTileColumns = kTileVectors * kLanes;
constexpr int kMostTileRows = 12;
// Narrow tiles have more rows: as many sums as hide how long an addition takes.
constexpr int tile_rows(int64_t vectors) { return 2 * vectors <= kTileVectors ? kMostTileRows : kMostTileRows / 2; }

static_assert(kPanelColumns % kTileColumns == 0);

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
  int64_t last_columns;  // of the tile's last vector
  NanWatch* nan;         // null: nobody asks
};

// Any tile; its sums lie in `sums`, row by row.
[[gnu::noinline]] void store_slowly(const Tile& tile, const float* sums, int rows, int vectors) {
  for (int j = 0; j < vectors; ++j) {
    const int64_t count = j == vectors - 1 ? tile.last_columns : kLanes;
    const Mask mask = first_lanes(count);
    const auto row_vector = [&](const float* v) { return v != nullptr ? load(v + j * kLanes, mask) : broadcast(0.0F); };
    const Floats before = row_vector(tile.before);
    const Floats after = row_vector(tile.after);
    for (int i = 0; i < rows; ++i) {
      float* c = tile.c + i * tile.c_row + j * kLanes;
      const Floats start = tile.first ? before : load(c, mask);
      Floats sum = load(sums + (i * vectors + j) * kLanes);
      if (tile.has_sum) sum = add(start, sum);
      if (tile.after != nullptr) sum = add(after, sum);  // adding zeros would turn -0 into 0
      if (tile.nan != nullptr) tile.nan->see(select(mask, sum, broadcast(0.0F)));
      store_first(c, sum, count);
    }
  }
}

// The same where columns fill vectors and are added to something, without branches in between.
template <bool kFirst, bool kAfter, int kRows, int kVectors>
[[gnu::always_inline]] inline void store_full(const Tile& tile, const Floats (&sums)[kRows][kVectors]) {
  float* c = tile.c;
  const float* before = tile.before;
  const float* after = tile.after;
  const int64_t c_row = tile.c_row;
  NanWatch nan;
#pragma GCC unroll 12
  for (int j = 0; j < kVectors; ++j, c += kLanes) {
    const Floats start = kFirst && before != nullptr ? load(before + j * kLanes) : broadcast(0.0F);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Floats sum = add(kFirst ? start : load(c + i * c_row), sums[i][j]);
      const Floats all = kAfter ? add(load(after + j * kLanes), sum) : sum;
      nan.see(all);
      store(c + i * c_row, all);
    }
  }
  if (tile.nan != nullptr) tile.nan->see(nan);
}

template <int kRows, int kVectors>
[[gnu::always_inline]] inline void store(const Tile& tile, const Floats (&sums)[kRows][kVectors]) {
  if (!tile.has_sum && tile.after == nullptr && tile.last_columns == kLanes) {
    NanWatch nan;
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < kVectors; ++j) {
        nan.see(sums[i][j]);
        store(tile.c + i * tile.c_row + j * kLanes, sums[i][j]);
      }
    }
    if (tile.nan != nullptr) tile.nan->see(nan);
    return;
  }
  if (!tile.has_sum || tile.last_columns != kLanes) {
    alignas(64) float values[kRows * kVectors * kLanes];
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 12
      for (int j = 0; j < kVectors; ++j) store(values + (i * kVectors + j) * kLanes, sums[i][j]);
    }
    return store_slowly(tile, values, kRows, kVectors);
  }
  if (tile.after == nullptr) {
    tile.first ? store_full<true, false>(tile, sums) : store_full<false, false>(tile, sums);
  } else {
    tile.first ? store_full<true, true>(tile, sums) : store_full<false, true>(tile, sums);
  }
}

template <int kRows, int kVectors>
void compute(const Tile& tile) {
  Floats sums[kRows][kVectors];
#pragma GCC unroll 12
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kVectors; ++j) sums[i][j] = broadcast(0.0F);
  }
  constexpr int kTogether = 4, kGroups = (kRows + kTogether - 1) / kTogether;
  const float* a[kGroups];
#pragma GCC unroll 12
  for (int i = 0; i < kGroups; ++i) a[i] = tile.a + i * kTogether * tile.a_row;
  const float* b = tile.b;
  for (int64_t k = 0; k < tile.k; ++k, b += tile.b_row) {
    Floats row[kVectors];
#pragma GCC unroll 12
    for (int j = 0; j < kVectors; ++j) row[j] = load(b + j * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Floats factor = broadcast(a[i / kTogether][i % kTogether * tile.a_row]);
#pragma GCC unroll 12
      for (int j = 0; j < kVectors; ++j) {
        sums[i][j] = add_product(factor, row[j], sums[i][j]);
      }
    }
#pragma GCC unroll 12
    for (int i = 0; i < kGroups; ++i) {
      a[i] += tile.a_column;
      asm("" : "+r"(a[i]));  // or compilers add up one address from the other, each of which waits for the one before
    }
  }
  store<kRows, kVectors>(tile, sums);
}

template <int kVectors, int kRows = tile_rows(kVectors)>
void compute_rows(const Tile& tile, int64_t rows) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return compute_rows<kVectors, kRows - 1>(tile, rows);
  }
  compute<kRows, kVectors>(tile);
}

using ComputeRows = void (*)(const Tile& tile, int64_t rows);
template <int kVectors = 1>
ComputeRows compute_of(int64_t vectors) {
  if constexpr (kVectors < kTileVectors) {
    if (vectors != kVectors) return compute_of<kVectors + 1>(vectors);
  }
  return compute_rows<kVectors>;
}

// Part of b: `stride` from row to row, or from column to column where these lie without gaps.
struct Panel {
  const float* b;
  int64_t stride, depth, columns;
};

// to[k][j] = b[k][j] of a b whose rows have no gaps.
void copy_rows(const Panel& panel, float* to) {
  const float* row = panel.b;
  for (int64_t k = 0; k < panel.depth; ++k, row += panel.stride, to += kTileColumns) {
    for (int64_t j = 0; j < panel.columns; j += kLanes) store(to + j, load(row + j, first_lanes(panel.columns - j)));
  }
}

// The same of one whose columns have none.
void copy_columns(const Panel& panel, float* to) {
  for (int64_t j = 0; j < panel.columns; j += kLanes) {
    for (int64_t k = 0; k < panel.depth; k += kLanes) {
      const int64_t terms = panel.depth - k < kLanes ? panel.depth - k : kLanes;
      const Mask mask = first_lanes(terms);
      Floats rows[kLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        rows[i] = j + i < panel.columns ? load(panel.b + (j + i) * panel.stride + k, mask) : broadcast(0.0F);
      }
      transpose(rows);
      for (int64_t i = 0; i < terms; ++i) store(to + (k + i) * kTileColumns + j, rows[i]);
    }
  }
}

// Terms [k, k + depth) of some columns.
struct Block {
  int64_t k, depth, column_begin, column_end;
};

// Few lines of a narrow tile stay in the cache where rows of b begin far from each other: many rows of a read them
// anew.
bool can_read_in_place(const Gemm& g, const Block& block, int64_t rows) {
  constexpr int64_t kFewRows = 60;
  return g.b_column == 1 && (block.column_end - block.column_begin) % kLanes == 0 &&
         (kTileColumns == kPanelColumns || rows <= kFewRows);
}

// Tile after tile, each row by row.
void copy_block(const Gemm& g, const Block& block, float* to) {
  const bool has_rows = g.b_column == 1;
  for (int64_t j = block.column_begin; j < block.column_end; j += kTileColumns, to += block.depth * kTileColumns) {
    const int64_t columns = block.column_end - j < kTileColumns ? block.column_end - j : kTileColumns;
    (has_rows ? copy_rows : copy_columns)(
        {g.b + block.k * g.b_row + j * g.b_column, has_rows ? g.b_row : g.b_column, block.depth, columns}, to);
  }
}

// Rows [begin, end) times the columns of the tile, which is that of row 0 and has so many vectors.
void multiply_rows(Tile tile, int64_t begin, int64_t end, int64_t vectors) {
  const ComputeRows compute = compute_of(vectors);
  const int64_t rows_of_tile = tile_rows(vectors);
  const float* a = tile.a;
  float* c = tile.c;
  int64_t tiles = (end - begin + rows_of_tile - 1) / rows_of_tile;
  for (int64_t i = begin; tiles > 0; --tiles) {
    const int64_t height = (end - i + tiles - 1) / tiles;  // about the same for all
    tile.a = a + i * tile.a_row;
    tile.c = c + i * tile.c_row;
    compute(tile, height);
    i += height;
  }
}

// Rows of the part times the columns of the block, where `copy` has these; null: they are read in place. With several
// tiles to a block a chunk of rows stays in the second-level cache while they pass by. False: it has a NaN.
bool multiply_block(const Gemm& g, const GemmPart& part, const Block& block, const float* copy) {
  constexpr int64_t kChunkRows = 8 * kMostTileRows;
  const bool first = block.k == 0, last = block.k + block.depth == g.k;
  NanWatch nan;
  for (int64_t i = part.row_begin; i < part.row_end; i += kChunkRows) {
    const int64_t end = part.row_end - i < kChunkRows ? part.row_end : i + kChunkRows;
    for (int64_t j = block.column_begin; j < block.column_end; j += kTileColumns) {
      const int64_t columns = block.column_end - j < kTileColumns ? block.column_end - j : kTileColumns;
      const int64_t vectors = (columns + kLanes - 1) / kLanes;
      const Tile tile{g.a + block.k * g.a_column,
                      g.a_row,
                      g.a_column,
                      copy != nullptr ? copy + (j - block.column_begin) * block.depth : g.b + block.k * g.b_row + j,
                      copy != nullptr ? kTileColumns : g.b_row,
                      g.c + j,
                      g.c_row,
                      block.depth,
                      first && g.before != nullptr ? g.before + j : nullptr,
                      last && g.after != nullptr ? g.after + j : nullptr,
                      !first || g.before != nullptr || g.order.from_zero,
                      first,
                      columns - (vectors - 1) * kLanes,
                      &nan};
      multiply_rows(tile, i, end, vectors);
    }
  }
  return !nan.any();
}

inline bool multiply_part(const Gemm& gemm, const GemmPart& part, float* scratch) {
  const int64_t k_block = gemm.order.k_block;
  bool numbers = true;
  for (int64_t k = 0; k < gemm.k; k += k_block) {
    const int64_t depth = gemm.k - k < k_block ? gemm.k - k : k_block;
    for (int64_t j = part.column_begin; j < part.column_end; j += kPanelColumns) {
      const Block block{k, depth, j, part.column_end - j < kPanelColumns ? part.column_end : j + kPanelColumns};
      const bool in_place = can_read_in_place(gemm, block, part.row_end - part.row_begin);
      if (!in_place) copy_block(gemm, block, scratch);
      if (!multiply_block(gemm, part, block, in_place ? nullptr : scratch)) numbers = false;
    }
  }
  return numbers;
}

}  // namespace

}  // namespace duet
