#pragma once

#include <string.h>
#include "graph/kernels/image_kernels.h"

// Max pooling with the vector operations of *_simd.h, which is included before. The columns whose windows reach over an
// edge, and strides other than 1 and 2, are computed one by one.

namespace duet {

namespace {

struct Greatest {
  Floats value;
  Ints index;
};

inline void take(Greatest& greatest, Floats value, Ints index) {
  const Mask better = greater_or_nan(value, greatest.value);
  greatest.value = select(better, value, greatest.value);
  greatest.index = select(better, index, greatest.index);
}

struct Window {  // rows of x under a row of y
  int64_t begin, end;
};

inline Window rows_of(const MaxPool& pool, int64_t out_row) {
  const int64_t begin = out_row * pool.stride_height - pool.padding_height;
  const int64_t end = begin + pool.window_height;
  return {begin < 0 ? 0 : begin, end < pool.height ? end : pool.height};
}

void pool_one(const MaxPoolForward& plane, const Window& rows, int64_t column, int64_t to) {
  const MaxPool& pool = plane.pool;
  int64_t begin = column * pool.stride_width - pool.padding_width;
  const int64_t end = begin + pool.window_width < pool.width ? begin + pool.window_width : pool.width;
  if (begin < 0) begin = 0;
  float greatest = -__builtin_inff();
  int64_t at = rows.begin * pool.width + begin;
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t i = row * pool.width + begin; i < row * pool.width + end; ++i) {
      if (!(plane.x[i] > greatest) && plane.x[i] == plane.x[i]) continue;
      greatest = plane.x[i];
      at = i;
    }
  }
  plane.y[to] = greatest;
  plane.indices[to] = at;
}

// Columns of y with whole windows, of which the first begins at `begin`: neighbours in y are neighbours in x.
inline Greatest pool_stride_1(const MaxPoolForward& plane, const Window& rows, int64_t begin, int64_t count) {
  const MaxPool& pool = plane.pool;
  const Mask mask = first_lanes(count);
  Greatest greatest{broadcast(-__builtin_inff()), ramp(static_cast<int>(rows.begin * pool.width + begin), 1)};
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = row * pool.width + begin;
    Ints index = ramp(static_cast<int>(at), 1);
    for (int64_t i = 0; i < pool.window_width; ++i, index = add_ints(index, broadcast_int(1))) {
      take(greatest, load(plane.x + at + i, mask), index);
    }
  }
  return greatest;
}

// Neighbours in y are two apart in x: a pair of vectors holds two columns of all windows.
inline Greatest pool_stride_2(const MaxPoolForward& plane, const Window& rows, int64_t begin, int64_t count) {
  const MaxPool& pool = plane.pool;
  Greatest greatest{broadcast(-__builtin_inff()), ramp(static_cast<int>(rows.begin * pool.width + begin), 2)};
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    const int64_t at = row * pool.width + begin;
    Ints index = ramp(static_cast<int>(at), 2);
    for (int64_t i = 0; i < pool.window_width; i += 2, index = add_ints(index, broadcast_int(2))) {
      const bool has_odd = i + 1 < pool.window_width;
      const int64_t floats = 2 * count - (has_odd ? 0 : 1);
      const float* from = plane.x + at + i;
      const Floats low = load(from, first_lanes(floats));
      const Floats high = floats > kLanes ? load(from + kLanes, first_lanes(floats - kLanes)) : low;
      take(greatest, even(low, high), index);
      if (has_odd) take(greatest, odd(low, high), add_ints(index, broadcast_int(1)));
    }
  }
  return greatest;
}

// The columns of y whose windows lie inside, if they are computed in vectors.
inline IndexRange whole_columns(const MaxPool& pool) {
  const int64_t stride = pool.stride_width;
  const int64_t last = pool.width - pool.window_width + pool.padding_width;  // begin of a whole window, in x
  const int64_t begin = (pool.padding_width + stride - 1) / stride;
  int64_t end = last < 0 ? 0 : last / stride + 1;
  if (end > pool.out_width) end = pool.out_width;
  return stride > 2 || end < begin ? IndexRange{0, 0} : IndexRange{begin, end};
}

// The last vector of a row takes some columns again rather than few.
inline int64_t vector_begin(int64_t i, const IndexRange& columns) {
  return i + kLanes > columns.end && columns.end - kLanes >= columns.begin ? columns.end - kLanes : i;
}

void pool_row(const MaxPoolForward& plane, int64_t row, const IndexRange& whole) {
  const MaxPool& pool = plane.pool;
  const Window rows = rows_of(pool, row);
  const int64_t to = row * pool.out_width;
  for (int64_t i = 0; i < whole.begin; ++i) pool_one(plane, rows, i, to + i);
  for (int64_t i = whole.begin; i < whole.end; i += kLanes) {
    i = vector_begin(i, whole);
    const int64_t count = whole.end - i < kLanes ? whole.end - i : kLanes;
    const int64_t begin = i * pool.stride_width - pool.padding_width;
    const auto pool_some = pool.stride_width == 1 ? pool_stride_1 : pool_stride_2;
    const Greatest greatest = pool_some(plane, rows, begin, count);
    store_first(plane.y + to + i, greatest.value, count);
    store_wide(plane.indices + to + i, greatest.index, count);
  }
  for (int64_t i = whole.end; i < pool.out_width; ++i) pool_one(plane, rows, i, to + i);
}

void max_pool_forward(const MaxPoolForward& work, const IndexRange& planes) {
  const MaxPool& pool = work.pool;
  const int64_t out_pixels = pool.out_height * pool.out_width;
  const IndexRange whole = whole_columns(pool);
  for (int64_t p = planes.begin; p < planes.end; ++p) {
    const MaxPoolForward plane{pool, work.x + p * pool.height * pool.width, work.y + p * out_pixels,
                               work.indices + p * out_pixels};
    for (int64_t row = 0; row < pool.out_height; ++row) pool_row(plane, row, whole);
  }
}

void spread_plane(const MaxPoolBackward& plane) {
  const MaxPool& pool = plane.pool;
  memset(plane.grad_x, 0, static_cast<size_t>(pool.height * pool.width) * sizeof(float));
  for (int64_t i = 0; i < pool.out_height * pool.out_width; ++i) {
    float& to = plane.grad_x[plane.indices[i]];
    to = add(to, plane.grad[i]);
  }
}

inline void spread_planes(const MaxPoolBackward& work, const IndexRange& planes,
                          void (*spread)(const MaxPoolBackward& plane)) {
  const MaxPool& pool = work.pool;
  const int64_t out_pixels = pool.out_height * pool.out_width;
  for (int64_t p = planes.begin; p < planes.end; ++p) {
    spread(
        {pool, work.grad + p * out_pixels, work.indices + p * out_pixels, work.grad_x + p * pool.height * pool.width});
  }
}

inline void max_pool_backward(const MaxPoolBackward& work, const IndexRange& planes) {
  spread_planes(work, planes, spread_plane);
}

}  // namespace

}  // namespace duet
