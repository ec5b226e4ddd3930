#pragma once

#include "graph/kernels/adamw_loops.h"
#include "graph/kernels/bernoulli_loops.h"
#include "graph/kernels/pointwise_kernels.h"

// The loops of pointwise_kernels.h, with the vector operations of *_simd.h, which is included before.

namespace duet {

namespace {

// Some elements of a row: all lanes, or the last ones.
template <class Function>
inline void compute_row(const Pointwise& work, int64_t row, Function function) {
  const float* a = work.a + row * work.count;
  float* y = work.y + row * work.count;
  const Floats number = broadcast(work.number);
  int64_t i = 0;
  for (; i + kLanes <= work.count; i += kLanes) {
    store(y + i, function(load(a + i), work.b != nullptr ? load(work.b + i) : number));
  }
  if (i == work.count) return;
  const Mask rest = first_lanes(work.count - i);
  const Floats values = function(load(a + i, rest), work.b != nullptr ? load(work.b + i, rest) : number);
  store_first(y + i, values, work.count - i);
}

template <class Function>
inline void compute(const Pointwise& work, Function function) {
  for (int64_t row = 0; row < work.rows; ++row) compute_row(work, row, function);
}

// Of two NaN that of b goes first, as in ATen's a + alpha * b.
void pointwise_add(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return add(b, a); });
}
void pointwise_subtract(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return multiply_add(b, broadcast(-1), a); });
}
void pointwise_multiply(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return multiply(b, a); });
}
void pointwise_divide(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return divide(a, b); });
}
void pointwise_relu(const Pointwise& work) {
  compute(work, [](Floats a, Floats) { return select(less(a, broadcast(0)), broadcast(0), a); });
}
void pointwise_threshold_backward(const Pointwise& work) {
  const Floats threshold = broadcast(work.number);
  compute(work, [=](Floats a, Floats b) { return select(greater_or_nan(a, threshold), b, broadcast(0)); });
}

constexpr PointwiseKernels kPointwiseKernels = {
    pointwise_add,  pointwise_subtract,           pointwise_multiply, pointwise_divide,
    pointwise_relu, pointwise_threshold_backward, bernoulli,          adamw};

}  // namespace

}  // namespace duet
