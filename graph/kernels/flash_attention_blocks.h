#pragma once

#include <math.h>
#include "graph/kernels/gemm_loops.h"
#include "graph/kernels/softmax_loops.h"

// The products of attention over a block of queries and all keys: in BLAS's order, and without what a causal mask hides
// from all rows of a tile.

namespace duet {

namespace {

constexpr int64_t kQueryBlock = 32;  // rows that ATen takes at a time

template <class Number>
struct Rows {
  Number* data;
  int64_t stride;

  Number* row(int64_t i) const { return data + i * stride; }
  Rows from(int64_t i) const { return {row(i), stride}; }
};

template <class Number>
Rows<Number> rows_of(const Heads<Number>& all, const Attention& shape, int64_t head) {
  return {all.data + head / shape.heads * all.batch + head % shape.heads * all.head, all.row};
}

void scale_rows(Rows<const float> rows, const RowShape& shape, float scale, float* to) {
  for (int64_t i = 0; i < shape.rows; ++i, to += shape.width) {
    for (int64_t j = 0; j < shape.width; j += kLanes) store(to + j, multiply(load(rows.row(i) + j), broadcast(scale)));
  }
}

// The transposed rows, as panels of kTileColumns columns one after the other.
void transpose_rows(Rows<const float> rows, const RowShape& shape, float* panels) {
  for (int64_t j = 0; j < shape.rows; j += kTileColumns) {
    const int64_t columns = shape.rows - j < kTileColumns ? shape.rows - j : kTileColumns;
    copy_columns({rows.row(j), rows.stride, shape.width, columns}, panels + j * shape.width);
  }
}

enum class Start { kPart, kZero, kSum };  // of an element of c: nothing but the product, 0 + it, c + it

// What some rows of c are made of.
struct Reach {
  int64_t first_term, terms, columns;
};

// c = a b. From one column of b's panels to the next it is g.b_column.
template <class ReachOf>
void multiply_seen(const Gemm& g, Start start, ReachOf reach_of) {
  for (int64_t j = 0; j < g.n; j += kTileColumns) {
    int64_t tiles = (g.m + kTileRows - 1) / kTileRows;
    for (int64_t i = 0; tiles > 0; --tiles) {
      const int64_t height = (g.m - i + tiles - 1) / tiles;
      const Reach reach = reach_of(i, i + height);
      const int64_t columns = reach.columns - j < kTileColumns ? reach.columns - j : kTileColumns;
      const float* a = g.a + i * g.a_row + reach.first_term * g.a_column;
      const float* b = g.b + j * g.b_column + reach.first_term * g.b_row;
      const Tile tile{a,
                      g.a_row,
                      g.a_column,
                      b,
                      g.b_row,
                      g.c + i * g.c_row + j,
                      g.c_row,
                      reach.terms,
                      nullptr,
                      nullptr,
                      start != Start::kPart,
                      start != Start::kSum,
                      kLanes};
      if (columns > 0) compute_of<false>((columns + kLanes - 1) / kLanes)(tile, height);
      i += height;
    }
  }
}

// Queries that are computed together. Weights and scores are [row][key] without gaps.
struct QueryBlock {
  QueryBlock(const Attention& attention, int64_t first_query)
      : shape(attention),
        first(first_query),
        rows(attention.length - first_query < kQueryBlock ? attention.length - first_query : kQueryBlock) {}
  const Attention& shape;
  int64_t first, rows;

  int64_t seen_by(int64_t row) const { return shape.causal ? first + row + 1 : shape.length; }
  int64_t seen() const { return seen_by(rows - 1); }

  // scores[row][key] = a[row] times a column of the panels.
  void score(Rows<const float> a, const float* panels, float* scores) const {
    const Gemm product{rows,   seen(),       shape.width, a.row(first), a.stride,    1,
                       panels, kTileColumns, shape.width, scores,       shape.length};
    multiply_seen(product, Start::kPart, [&](int64_t, int64_t end) { return Reach{0, shape.width, seen_by(end - 1)}; });
  }

  // c[row] = the sum over keys of b[key] times weights[row][key].
  void mix(const float* weights, Rows<const float> b, Rows<float> c, Start start) const {
    const Gemm product{rows, shape.width, seen(), weights, shape.length, 1, b.data, b.stride, 1, c.data, c.stride};
    multiply_seen(product, start, [&](int64_t, int64_t end) { return Reach{0, seen_by(end - 1), shape.width}; });
  }

  // c[key] += the sum over rows of b[row] times weights[row][key]; keys that no block has seen yet start from 0.
  void mix_back(const float* weights, Rows<const float> b, Rows<float> c) const {
    const int64_t old = shape.causal || first == 0 ? first : shape.length;
    const auto keys = [&](int64_t begin, int64_t end) {
      return Gemm{end - begin, shape.width, rows,         weights + begin, 1,       shape.length, b.data,
                  b.stride,    1,           c.row(begin), c.stride,        nullptr, nullptr,      {}};
    };
    multiply_seen(keys(0, old), Start::kSum, [&](int64_t, int64_t) { return Reach{0, rows, shape.width}; });
    multiply_seen(keys(old, seen()), Start::kZero, [&](int64_t begin, int64_t) {
      const int64_t blind = shape.causal ? begin : 0;
      return Reach{blind, rows - blind, shape.width};
    });
  }
};

}  // namespace

}  // namespace duet
