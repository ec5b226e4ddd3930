#pragma once

#include "graph/kernels/gemm_loops.h"

// Products of a single query, which BLAS treats as those of a vector: here with every sum in the order of MKL on AMD's
// CPUs, where it multiplies and adds four numbers at a time. A call of it costs twenty times what such a product does.

namespace duet {

namespace {

constexpr int64_t kMklLanes = 4;

template <class Number>
struct Rows {
  Number* data;
  int64_t stride;

  Number* row(int64_t i) const { return data + i * stride; }
  Rows from(int64_t i) const { return {row(i), stride}; }
};

// Rows that queries are multiplied with, and what the number times them is: rows, or panels of columns.
struct Factor {
  Rows<const float> rows;
  float scale;
  Rows<const float> scaled;
};

float add_terms(const float* a, const float* b, int64_t count, float sum) {
  for (int64_t k = 0; k < count; ++k) sum += a[k] * b[k];
  return sum;
}

// Sums side by side of the terms up to `end`, of each kSets * kMklLanes terms one to a sum, added to one. The first one
// begins with the first four terms.
template <int kSets>
float sum_in_lanes(const float* a, const float* b, int64_t end) {
  float sums[kSets * kMklLanes] = {add_terms(a, b, kMklLanes, 0)};
  for (int64_t k = kMklLanes; k < end; k += kSets * kMklLanes) {
#pragma GCC unroll 8
    for (int64_t i = 0; i < kSets * kMklLanes; ++i) sums[i] += a[k + i] * b[k + i];
  }
  for (int64_t i = kMklLanes; i < kSets * kMklLanes; ++i) sums[i - kMklLanes] += sums[i];
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

// scores[key] = b.scale * (a b[key]), for 4 n + 1 keys: all but the last one BLAS takes four at a time. The width is a
// multiple of 8.
void score_single(const float* a, const Factor& b, const RowShape& shape, float* scores) {
  const int64_t last = shape.rows - 1, rest = shape.width - kMklLanes;
  for (int64_t key = 0; key < last; ++key) {
    scores[key] = sum_in_lanes<1>(a, b.rows.row(key), shape.width) * b.scale;
  }
  const float* row = b.rows.row(last);
  scores[last] = add_terms(a + rest, row + rest, kMklLanes, sum_in_lanes<2>(a, row, rest)) * b.scale;
}

// c = the sum over keys of b[key] times b.scale * weights[key].
void mix_single(const float* weights, const Factor& b, const RowShape& shape, float* c) {
  for (int64_t j = 0; j < shape.width; j += kLanes) {
    Floats sum = broadcast(0.0F);
    for (int64_t key = 0; key < shape.rows; ++key) {
      sum = add(sum, multiply(load(b.rows.row(key) + j), broadcast(b.scale * weights[key])));
    }
    store(c + j, sum);
  }
}

// c[key] += b's row times b.scale * weights[key].
void mix_single_back(const float* weights, const Factor& b, const RowShape& shape, Rows<float> c) {
  for (int64_t key = 0; key < shape.rows; ++key) {
    const Floats weight = broadcast(b.scale * weights[key]);
    for (int64_t j = 0; j < shape.width; j += kLanes) {
      store(c.row(key) + j, add(load(c.row(key) + j), multiply(load(b.rows.data + j), weight)));
    }
  }
}

}  // namespace

}  // namespace duet
