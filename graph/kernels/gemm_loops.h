#pragma once

#include "graph/kernels/gemm_kernel.h"
#include "graph/kernels/index_range.h"

// Products, over the vectors of avx2_simd.h or avx512_simd.h.
//
// A tile of c that fills the registers stays in them while k runs through a block.
// Rows of b that lie side by side in memory are read in place if they fill vectors and, with AVX2, few rows of a ask
// for them; others are copied into the scratch panel first. So are rows of a that would push each other out of the
// cache.

namespace duet {

namespace {

constexpr int kTileVectors = kLanes == 16 ? 4 : 2;  // of 32 registers, or of 16
constexpr int64_t kTileColumns = kTileVectors * kLanes;
constexpr int kMostTileRows = 12;
// Narrow tiles have more rows: as many sums as hide how long an addition takes.
constexpr int tile_rows(int64_t vectors) { return 2 * vectors <= kTileVectors ? kMostTileRows : kMostTileRows / 2; }

static_assert(kPanelColumns % kTileColumns == 0 && kChunkRows % kMostTileRows == 0);
static_assert(kLineGap >= kLanes);  // copies are written in whole vectors

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

// Adds up the terms of a tile. kInRows: a row of `a` has them side by side. In few instructions, since two threads of a
// core share its decoder; with prefetches, since a core foresees neither the next rows nor terms that lie apart.
template <bool kInRows, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_terms(const Tile& tile, Floats (&sums)[kRows][kVectors]) {
  constexpr int kTogether = 4, kGroups = (kRows + kTogether - 1) / kTogether;
  constexpr int64_t kUnroll = 8, kTermsAhead = 12;
  const int64_t a_row = tile.a_row, a_column = kInRows ? 1 : tile.a_column;
  const float *a[kGroups], *next[kGroups];  // of this tile's rows and of the next one's
  const float* b = tile.b;
#pragma GCC unroll 12
  for (int i = 0; i < kGroups; ++i) {
    a[i] = tile.a + i * kTogether * a_row;
    next[i] = a[i] + kRows * a_row;
  }
  const auto advance = [](const float*& pointer, int64_t by) __attribute__((always_inline)) {
    pointer += by;
    asm("" : "+r"(pointer));  // or compilers add up one address from the other, each of which waits for the one before
  };
  const auto advance_all = [&](const float*(&rows)[kGroups], int64_t by) __attribute__((always_inline)) {
#pragma GCC unroll 12
    for (int i = 0; i < kGroups; ++i) advance(rows[i], by);
  };
  const auto add_term = [&](int64_t term) __attribute__((always_inline)) {
    Floats row[kVectors];
#pragma GCC unroll 12
    for (int j = 0; j < kVectors; ++j) row[j] = load(b + j * kLanes);
#pragma GCC unroll 12
    for (int i = 0; i < kRows; ++i) {
      const Floats factor = broadcast(a[i / kTogether][i % kTogether * a_row + term]);
#pragma GCC unroll 12
      for (int j = 0; j < kVectors; ++j) sums[i][j] = add_product(factor, row[j], sums[i][j]);
    }
    advance(b, tile.b_row);
    if constexpr (!kInRows) {
      __builtin_prefetch(a[0] + kTermsAhead * a_column);
      advance_all(a, a_column);
    }
  };
  int64_t k = 0;
  for (; k + kUnroll <= tile.k; k += kUnroll) {
    if constexpr (kInRows) {
#pragma GCC unroll 12
      for (int i = 0; i < kRows; ++i) __builtin_prefetch(next[i / kTogether] + i % kTogether * a_row);
      advance_all(next, kUnroll);
    }
#pragma GCC unroll 8
    for (int64_t term = 0; term < kUnroll; ++term) add_term(kInRows ? term : 0);
    if constexpr (kInRows) advance_all(a, kUnroll);
  }
  for (; k < tile.k; ++k) {
    add_term(0);
    if constexpr (kInRows) advance_all(a, 1);
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
  tile.a_column == 1 ? add_terms<true>(tile, sums) : add_terms<false>(tile, sums);
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

// Part of a matrix: `stride` from row to row, or from column to column where these lie without gaps.
struct Panel {
  const float* from;
  int64_t stride, depth, columns;
};

// to[tile][k][j] = from[k][j] where rows have no gaps, for tiles of so many columns.
void copy_rows(const Panel& panel, int64_t tile_columns, float* to) {
  constexpr int64_t kRowsAhead = 8;
  const float* row = panel.from;
  for (int64_t k = 0; k < panel.depth; ++k, row += panel.stride, to += tile_columns) {
    for (int64_t tile = 0; tile < panel.columns; tile += tile_columns) {
      const int64_t end = panel.columns - tile < tile_columns ? panel.columns : tile + tile_columns;
      for (int64_t j = tile; j < end; j += kLanes) {
        __builtin_prefetch(row + kRowsAhead * panel.stride + j);
        const Floats numbers = end - j < kLanes ? load(row + j, first_lanes(end - j)) : load(row + j);
        store(to + tile * panel.depth + j - tile, numbers);
      }
    }
  }
}

// The same for one tile where columns have none.
void copy_columns(const Panel& panel, float* to) {
  for (int64_t j = 0; j < panel.columns; j += kLanes) {
    for (int64_t k = 0; k < panel.depth; k += kLanes) {
      const int64_t terms = panel.depth - k < kLanes ? panel.depth - k : kLanes;
      const Mask mask = first_lanes(terms);
      Floats rows[kLanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < kLanes; ++i) {
        rows[i] = j + i < panel.columns ? load(panel.from + (j + i) * panel.stride + k, mask) : broadcast(0.0F);
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

// Rows of a, as tiles read them.
struct Chunk {
  const float* a;
  int64_t row, column;
};

// Lines that begin a large power of two apart share few places of a cache: those are copied.
Chunk chunk_of(const Gemm& g, const Block& block, const IndexRange& rows, float* to) {
  constexpr int64_t kFarTerms = 256, kFarRows = 1024;
  const Chunk chunk{g.a + rows.begin * g.a_row + block.k * g.a_column, g.a_row, g.a_column};
  const int64_t count = rows.end - rows.begin;
  if (block.depth > kMostCopiedTerms) return chunk;
  if (g.a_column == 1 && g.a_row % kFarRows == 0 && count > kMostTileRows) {
    const int64_t length = block.depth + kLineGap;
    copy_rows({chunk.a, g.a_row, count, block.depth}, length, to);
    return {to, length, 1};
  }
  if (g.a_row == 1 && g.a_column % kFarTerms == 0 && block.depth > kLanes) {
    constexpr int64_t kLength = kChunkRows + kLineGap;
    copy_rows({chunk.a, g.a_column, block.depth, count}, kLength, to);
    return {to, 1, kLength};
  }
  return chunk;
}

// Few lines of a narrow tile stay in the cache where rows of b begin far from each other: many rows of a read them
// anew.
bool can_read_in_place(const Gemm& g, const Block& block, int64_t rows) {
  constexpr int64_t kFewRows = 60;
  return g.b_column == 1 && (block.column_end - block.column_begin) % kLanes == 0 &&
         (kTileColumns == kPanelColumns || rows <= kFewRows);
}

// Tile after tile, each row by row.
void copy_block(const Gemm& g, const Block& block, float* to) {
  const float* b = g.b + block.k * g.b_row;
  const int64_t begin = block.column_begin, end = block.column_end;
  if (g.b_column == 1) return copy_rows({b + begin, g.b_row, block.depth, end - begin}, kTileColumns, to);
  for (int64_t j = begin; j < end; j += kTileColumns, to += block.depth * kTileColumns) {
    const int64_t columns = end - j < kTileColumns ? end - j : kTileColumns;
    copy_columns({b + j * g.b_column, g.b_column, block.depth, columns}, to);
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

// Rows of the part times the columns of the block, which `panel` has; null: they are read in place. With several tiles
// to a block a chunk of rows stays in the second-level cache while they pass by. False: it has a NaN.
bool multiply_block(const Gemm& g, const GemmPart& part, const Block& block, const float* panel, float* copy) {
  const bool first = block.k == 0, last = block.k + block.depth == g.k;
  NanWatch nan;
  for (int64_t i = part.row_begin; i < part.row_end; i += kChunkRows) {
    const int64_t end = part.row_end - i < kChunkRows ? part.row_end : i + kChunkRows;
    const Chunk chunk = chunk_of(g, block, {i, end}, copy);
    for (int64_t j = block.column_begin; j < block.column_end; j += kTileColumns) {
      const int64_t columns = block.column_end - j < kTileColumns ? block.column_end - j : kTileColumns;
      const int64_t vectors = (columns + kLanes - 1) / kLanes;
      const Tile tile{chunk.a,
                      chunk.row,
                      chunk.column,
                      panel != nullptr ? panel + (j - block.column_begin) * block.depth : g.b + block.k * g.b_row + j,
                      panel != nullptr ? kTileColumns : g.b_row,
                      g.c + i * g.c_row + j,
                      g.c_row,
                      block.depth,
                      first && g.before != nullptr ? g.before + j : nullptr,
                      last && g.after != nullptr ? g.after + j : nullptr,
                      !first || g.before != nullptr || g.order.from_zero,
                      first,
                      columns - (vectors - 1) * kLanes,
                      &nan};
      multiply_rows(tile, 0, end - i, vectors);
    }
  }
  return !nan.any();
}

inline bool multiply_part(const Gemm& gemm, const GemmPart& part, float* scratch) {
  const int64_t k_block = gemm.order.k_block;
  float* const panel = scratch + kChunkFloats;
  bool numbers = true;
  for (int64_t k = 0; k < gemm.k; k += k_block) {
    const int64_t depth = gemm.k - k < k_block ? gemm.k - k : k_block;
    for (int64_t j = part.column_begin; j < part.column_end; j += kPanelColumns) {
      const Block block{k, depth, j, part.column_end - j < kPanelColumns ? part.column_end : j + kPanelColumns};
      const bool in_place = can_read_in_place(gemm, block, part.row_end - part.row_begin);
      if (!in_place) copy_block(gemm, block, panel);
      if (!multiply_block(gemm, part, block, in_place ? nullptr : panel, scratch)) numbers = false;
    }
  }
  return numbers;
}

}  // namespace

}  // namespace duet
