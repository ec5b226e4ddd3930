#pragma once

#include "graph/kernels/row_kernels.h"
#include "graph/kernels/vector_functions.h"

// Softmax and its logarithm over rows, with the vector operations of *_simd.h, which is included before. How many lanes
// a vector has decides the order of the sums, so these must be those that ATen has.

namespace duet {

namespace {

constexpr auto add_values = [](Floats sum, Floats value) { return add(sum, value); };
constexpr auto keep_greater = [](Floats greatest, Floats value) { return greater(greatest, value); };

// A vector of columns of a row.
struct Columns {
  int64_t first;
  Floats of(const float* row) const { return load(row + first); }
  void write(float* row, Floats values) const { store(row + first, values); }
};

// The last ones, fewer than a vector; beyond are zeros.
struct LastColumns {
  int64_t first, count;
  Floats of(const float* row) const { return load(row + first, first_lanes(count)); }
  void write(float* row, Floats values) const { store_first(row + first, values, count); }
};

template <class Do>
void for_each_vector(int64_t width, Do work) {
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) work(Columns{i});
  if (i < width) work(LastColumns{i, width - i});
}

// value(columns) of a row, combined vector by vector; a row that is shorter than one, lane by lane.
template <class Value, class Combine>
float reduce_row(int64_t width, Value value, Combine combine) {
  if (width < kLanes) {
    float lanes[kLanes];
    store(lanes, value(LastColumns{0, width}));
    Floats all = broadcast(lanes[0]);
    for (int64_t i = 1; i < width; ++i) all = combine(all, broadcast(lanes[i]));
    store(lanes, all);
    return lanes[0];
  }
  Floats all = value(Columns{0});
  int64_t i = kLanes;
  for (; i + kLanes <= width; i += kLanes) all = combine(all, value(Columns{i}));
  if (i < width) all = select(first_lanes(width - i), combine(all, value(LastColumns{i, width - i})), all);
  return fold_lanes(all, combine);
}

inline float greatest_of(const float* row, int64_t width) {
  return reduce_row(width, [row](auto columns) { return columns.of(row); }, keep_greater);
}

// kLanes rows at a time: their sums share a logarithm.
bool log_softmax(const Softmax& work) {
  const auto [rows, width] = work.shape;
  NanWatch nan;
  for (int64_t first = 0; first < rows; first += kLanes) {
    const int64_t count = rows - first < kLanes ? rows - first : kLanes;
    float greatest[kLanes], log_sums[kLanes] = {};
    for (int64_t r = 0; r < count; ++r) {
      const float* x = work.x + (first + r) * width;
      greatest[r] = greatest_of(x, width);
      const Floats shift = broadcast(greatest[r]);
      const auto value = [&](auto columns) { return vector_exp(subtract(columns.of(x), shift)); };
      log_sums[r] = reduce_row(width, value, add_values);
    }
    store(log_sums, vector_log(load(log_sums)));
    for (int64_t r = 0; r < count; ++r) {
      const float* x = work.x + (first + r) * width;
      const Floats shift = broadcast(greatest[r]), log_sum = broadcast(log_sums[r]);
      for_each_vector(width, [&](auto columns) {
        const Floats y = subtract(subtract(columns.of(x), shift), log_sum);
        nan.see(y);
        columns.write(work.y + (first + r) * width, y);
      });
    }
  }
  return !nan.any();
}

bool softmax(const Softmax& work) {
  const auto [rows, width] = work.shape;
  NanWatch nan;
  for (int64_t row = 0; row < rows; ++row) {
    const float* x = work.x + row * width;
    float* y = work.y + row * width;
    const Floats shift = broadcast(greatest_of(x, width));
    const auto value = [&](auto columns) {
      const Floats power = vector_exp(subtract(columns.of(x), shift));
      columns.write(y, power);
      return power;
    };
    const Floats scale = broadcast(1 / reduce_row(width, value, add_values));
    for_each_vector(width, [&](auto columns) {
      const Floats share = multiply(columns.of(y), scale);
      nan.see(share);
      columns.write(y, share);
    });
  }
  return !nan.any();
}

bool log_softmax_backward(const SoftmaxBackward& work) {
  const auto [rows, width] = work.shape;
  NanWatch nan;
  for (int64_t at = 0; at < rows * width; at += width) {
    const auto value = [&](auto columns) { return columns.of(work.grad + at); };
    const Floats sum = broadcast(reduce_row(width, value, add_values));
    for_each_vector(width, [&](auto columns) {
      const Floats power = vector_exp(columns.of(work.y + at));
      const Floats grad_x = subtract_product(power, sum, columns.of(work.grad + at));
      nan.see(grad_x);
      columns.write(work.grad_x + at, grad_x);
    });
  }
  return !nan.any();
}

}  // namespace

}  // namespace duet
