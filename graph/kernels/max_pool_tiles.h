#pragma once

#include "graph/kernels/max_pool_loops.h"

// The backward of 2x2 windows side by side, with the vector operations of avx512_simd.h: with eight lanes it takes
// longer than one by one.

namespace duet {

namespace {

// An element of y belongs to one of four of x, and none of those to another: no sums. Zero plus grad, since -0 becomes
// 0.
void spread_row_2x2(const MaxPoolBackward& plane, int64_t row) {
  const MaxPool& pool = plane.pool;
  const auto width = static_cast<int>(pool.width);
  const int64_t from = row * pool.out_width;
  const int64_t to = 2 * row * pool.width;
  for (int64_t i = 0; i < pool.out_width; i += kLanes) {
    i = vector_begin(i, {0, pool.out_width});
    const int64_t count = pool.out_width - i < kLanes ? pool.out_width - i : kLanes;
    const Mask mask = first_lanes(count);
    const Floats value = add(load(plane.grad + from + i, mask), broadcast(0));
    const Ints index = load_wide(plane.indices + from + i, mask);
    const Ints corner = ramp(static_cast<int>(to + 2 * i), 2);
    for (int below = 0; below < 2; ++below) {
      const Ints left = add_ints(corner, broadcast_int(below * width));
      const Floats at_left = select(equal(index, left), value, broadcast(0));
      const Floats at_right = select(equal(index, add_ints(left, broadcast_int(1))), value, broadcast(0));
      float* begin = plane.grad_x + to + below * pool.width + 2 * i;
      store_first(begin, interleave_low(at_left, at_right), 2 * count);
      if (2 * count > kLanes) store_first(begin + kLanes, interleave_high(at_left, at_right), 2 * count - kLanes);
    }
  }
}

// Where x is odd, windows leave its last row and column out.
void spread_plane_2x2(const MaxPoolBackward& plane) {
  const MaxPool& pool = plane.pool;
  for (int64_t row = 0; row < pool.out_height; ++row) {
    spread_row_2x2(plane, row);
    if (pool.width % 2 == 0) continue;
    plane.grad_x[(2 * row + 1) * pool.width - 1] = 0;
    plane.grad_x[(2 * row + 2) * pool.width - 1] = 0;
  }
  for (int64_t i = 2 * pool.out_height * pool.width; i < pool.height * pool.width; ++i) plane.grad_x[i] = 0;
}

// At most a row and a column of x are left over; short rows leave too many lanes empty.
bool has_wide_tiles(const MaxPool& pool) {
  return pool.window_height == 2 && pool.window_width == 2 && pool.stride_height == 2 && pool.stride_width == 2 &&
         pool.padding_height == 0 && pool.padding_width == 0 && pool.height / 2 == pool.out_height &&
         pool.width / 2 == pool.out_width && 4 * pool.out_width >= 3 * kLanes;
}

void max_pool_backward_in_tiles(const MaxPoolBackward& work, const IndexRange& planes) {
  spread_planes(work, planes, has_wide_tiles(work.pool) ? spread_plane_2x2 : spread_plane);
}

}  // namespace

}  // namespace duet
