#pragma once

#include <math.h>
#include "graph/kernels/single_query_loops.h"
#include "graph/kernels/softmax_loops.h"

// Attention over short sequences, as ATen's flash attention has it where one block holds all keys: products over a
// block of queries and all keys in BLAS's order.
//
// What a causal mask hides is left out. ATen multiplies it by zeros, which changes no sum but one that is -0, and one
// to which a hidden infinity or NaN would be added: the kernels give up where either may be.

namespace duet {

namespace {

constexpr int64_t kRowGap = 16;  // rows of scores begin a multiple of it apart: tiles write whole vectors

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
    const int64_t vectors = ((g.n - j < kTileColumns ? g.n - j : kTileColumns) + kLanes - 1) / kLanes;
    int64_t tiles = (g.m + tile_rows(vectors) - 1) / tile_rows(vectors);
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
                      kLanes,
                      nullptr};
      if (columns > 0) compute_of((columns + kLanes - 1) / kLanes)(tile, height);
      i += height;
    }
  }
}

void clear_rows(Rows<float> rows, const RowShape& shape) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t j = 0; j < shape.width; ++j) rows.row(i)[j] = 0;
  }
}

// Queries that are computed together. Weights and scores are [row][key], each row `stride` after the one before.
// Products of a single query BLAS computes itself, unless its order for them is known.
struct QueryBlock {
  QueryBlock(const Attention& attention, int64_t first_query)
      : shape(attention),
        first(first_query),
        rows(attention.length - first_query < kQueryBlock ? attention.length - first_query : kQueryBlock),
        stride((attention.length + kRowGap - 1) / kRowGap * kRowGap) {}
  const Attention& shape;
  int64_t first, rows, stride;

  int64_t seen_by(int64_t row) const { return shape.causal ? first + row + 1 : shape.length; }
  int64_t seen() const { return seen_by(rows - 1); }
  int64_t seen_before() const { return shape.causal || first == 0 ? first : shape.length; }

  // scores[row][key] = a[row] b[key].
  void score(Rows<const float> a, const Factor& b, float* scores) const {
    const Gemm product{rows,          seen(),          shape.width, a.row(first), a.stride, 1,
                       b.scaled.data, b.scaled.stride, shape.width, scores,       stride};
    if (rows == 1 && shape.blas == nullptr) return score_single(product.a, b, {seen(), shape.width}, scores);
    if (rows == 1) return multiply_by_blas(product, b, "tn", 0);
    multiply_seen(product, Start::kPart, [&](int64_t, int64_t end) { return Reach{0, shape.width, seen_by(end - 1)}; });
  }

  // c[row] = the sum over keys of b[key] times weights[row][key]. Start::kPart or kZero.
  void mix(const float* weights, const Factor& b, Rows<float> c, Start start) const {
    const Gemm product{rows,          shape.width,     seen(), weights, stride,  1,
                       b.scaled.data, b.scaled.stride, 1,      c.data,  c.stride};
    if (rows == 1 && shape.blas == nullptr) return mix_single(weights, b, {seen(), shape.width}, c.data);
    if (rows == 1) {
      clear_rows(c, {1, shape.width});
      return multiply_by_blas(product, b, "nn", start == Start::kZero ? 1 : 0);
    }
    multiply_seen(product, start, [&](int64_t, int64_t end) { return Reach{0, seen_by(end - 1), shape.width}; });
  }

  // c[key] += the sum over rows of b[row] times weights[row][key]; keys that no block has seen yet start from 0.
  void mix_back(const float* weights, const Factor& b, Rows<float> c) const {
    const int64_t old = seen_before();
    const auto keys = [&](int64_t begin, int64_t end) {
      return Gemm{end - begin,     shape.width, rows,         weights + begin, 1,       stride,  b.scaled.data,
                  b.scaled.stride, 1,           c.row(begin), c.stride,        nullptr, nullptr, {}};
    };
    if (rows == 1) {
      clear_rows(c.from(old), {seen() - old, shape.width});
      if (shape.blas == nullptr) return mix_single_back(weights, b, {seen(), shape.width}, c);
      return multiply_by_blas(keys(0, seen()), b, "nt", 1);
    }
    multiply_seen(keys(0, old), Start::kSum, [&](int64_t, int64_t) { return Reach{0, rows, shape.width}; });
    multiply_seen(keys(old, seen()), Start::kZero, [&](int64_t begin, int64_t) {
      const int64_t blind = shape.causal ? begin : 0;
      return Reach{blind, rows - blind, shape.width};
    });
  }

 private:
  // c = before * c + b.scale * a b, as ATen calls it: by columns, so that b comes first. `transposes` b, and a.
  void multiply_by_blas(const Gemm& g, const Factor& b, const char* transposes, float before) const {
    const int m = static_cast<int>(g.n), n = static_cast<int>(g.m), k = static_cast<int>(g.k);
    const int b_row = static_cast<int>(b.rows.stride), c_row = static_cast<int>(g.c_row);
    const int a_row = static_cast<int>(g.a_row == 1 ? g.a_column : g.a_row);
    shape.blas(transposes, transposes + 1, &m, &n, &k, &b.scale, b.rows.data, &b_row, g.a, &a_row, &before, g.c,
               &c_row);
  }
};

// Whether no product of two such vectors can overflow, nor any number be infinite or NaN.
bool are_moderate(const Heads<const float>& all, const Attention& shape, int64_t head) {
  const Rows<const float> rows = rows_of(all, shape, head);
  constexpr float kLargest = 1e30F;
  Floats squares = broadcast(0.0F), others = squares;  // so that one need not wait for the other
  for (int64_t i = 0; i < shape.length; i += 2) {
    const int64_t next = i + 1 < shape.length ? i + 1 : i;
    for (int64_t j = 0; j < shape.width; j += kLanes) {
      const Floats x = load(rows.row(i) + j), y = load(rows.row(next) + j);
      squares = add_product(x, x, squares);
      others = add_product(y, y, others);
    }
  }
  return fold_lanes(add(squares, others), add_values) < kLargest;
}

// Whether what a mask hides is certain to be finite.
bool may_hide(const Attention& shape, int64_t head) {
  return !shape.causal || (are_moderate(shape.q, shape, head) && are_moderate(shape.k, shape, head) &&
                           are_moderate(shape.v, shape, head));
}

// From the first vector that a row does not see on, as far as a tile reaches.
void clear_unseen(float* row, int64_t begin, int64_t end) {
  for (int64_t j = begin; j < begin + kMostTileRows && j < end; j += kLanes) store(row + j, broadcast(0.0F));
}

// The greatest of the scores that a row sees. Those it does not see become -inf as far as its last vector reaches.
float greatest_seen(float* row, int64_t seen) {
  Floats most = broadcast(-INFINITY);
  int64_t j = 0;
  for (; j + kLanes <= seen; j += kLanes) most = greater(most, load(row + j));
  if (j < seen) {
    const Floats last = select(first_lanes(seen - j), load(row + j), broadcast(-INFINITY));
    store(row + j, last);
    most = greater(most, last);
  }
  return fold_lanes(most, keep_greater);
}

// The first columns, whole vectors of scores, become their exponentials. Not inlined, and with a loop of its own for
// their sum: the exponential needs all registers.
[[gnu::noinline]] float sum_of_powers(float* row, int64_t columns, float scale, float greatest) {
  const Floats factor = broadcast(scale), shift = broadcast(greatest);
  for (int64_t j = 0; j < columns; j += kLanes) {
    store(row + j, vector_exp_u20<true>(subtract(multiply(load(row + j), factor), shift)));
  }
  Floats sum = broadcast(0.0F);
  for (int64_t j = 0; j < columns; j += kLanes) sum = add(sum, load(row + j));
  return fold_lanes(sum, add_values);
}

struct Softened {
  float greatest, sum, log_sum;
};

// Scores become their exponentials, and zeros where the row does not see, as far as a tile reaches: step by step for
// all rows, which need not wait for each other then. What is left over whole vectors has libm's exponential of a
// double.
void soften(const QueryBlock& block, float* scores, Softened* rows) {
  const int64_t length = block.shape.length, end = length / kLanes * kLanes;
  const float scale = block.shape.scale;
  const auto for_each_row = [&](auto work) {
    for (int64_t i = 0; i < block.rows; ++i) work(scores + i * block.stride, block.seen_by(i), rows[i]);
  };
  for_each_row([&](float* row, int64_t seen, Softened& of) { of.greatest = greatest_seen(row, seen) * scale; });
  for_each_row([&](float* row, int64_t seen, Softened& of) {
    const int64_t columns = seen < end ? (seen + kLanes - 1) / kLanes * kLanes : end;
    of.sum = sum_of_powers(row, columns, scale, of.greatest);
    clear_unseen(row, columns, end);
  });
  for_each_row([&](float* row, int64_t seen, Softened& of) {
    for (int64_t j = end; j < length; ++j) {
      row[j] = j < seen ? static_cast<float>(exp(static_cast<double>(row[j] * scale - of.greatest))) : 0;
      of.sum += row[j];
    }
    of.log_sum = of.greatest + logf(of.sum);
  });
}

struct ForwardMemory {
  alignas(64) float keys[kLongestSequence * kWidestHead];
  alignas(64) float weights[kQueryBlock * kLongestSequence];
  alignas(64) float sums[kQueryBlock * kWidestHead];
};

// Whether ATen gives the same for certain.
bool forward_block(const AttentionForward& work, const QueryBlock& block, int64_t head, ForwardMemory& memory) {
  const Attention& shape = work.shape;
  const Rows<const float> values = rows_of(shape.v, shape, head);
  block.score(rows_of(shape.q, shape, head), {rows_of(shape.k, shape, head), 1, {memory.keys, kTileColumns}},
              memory.weights);
  const Rows<float> log_sum = rows_of(work.log_sum, shape, head).from(block.first);
  Softened softened[kQueryBlock];
  soften(block, memory.weights, softened);
  block.mix(memory.weights, {values, 1, values}, {memory.sums, shape.width}, Start::kPart);
  const Rows<float> out = rows_of(work.out, shape, head).from(block.first);
  NanWatch watch;
  for (int64_t i = 0; i < block.rows; ++i) {
    *log_sum.row(i) = softened[i].log_sum;
    const Floats share = broadcast(1 / softened[i].sum);
    for (int64_t j = 0; j < shape.width; j += kLanes) {
      const Floats y = multiply(load(memory.sums + i * shape.width + j), share);
      watch.see(select(is_minus_zero(y), broadcast(NAN), y));  // ATen may have a 0
      store(out.row(i) + j, y);
    }
  }
  return !watch.any();
}

bool attention_forward(const AttentionForward& work, const IndexRange& heads) {
  const Attention& shape = work.shape;
  ForwardMemory memory;
  for (int64_t head = heads.begin; head < heads.end; ++head) {
    if (!may_hide(shape, head)) return false;
    transpose_rows(rows_of(shape.k, shape, head), {shape.length, shape.width}, memory.keys);
    for (int64_t first = 0; first < shape.length; first += kQueryBlock) {
      if (!forward_block(work, {shape, first}, head, memory)) return false;
    }
  }
  return true;
}

}  // namespace

}  // namespace duet
