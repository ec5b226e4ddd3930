#pragma once

#include <immintrin.h>
#include "graph/kernels/conv_kernels.h"
#include "graph/kernels/transpose_loops.h"

// What the loops of convolutions have in common, with the vector operations of *_simd.h, which is included before.

namespace duet {

namespace {

// A vector holds output channels. A tile has kSlice of them, and of as many rows sums as fill the registers.
constexpr int kSliceVectors = 2;
constexpr int kSlice = kSliceVectors * kLanes;

template <int kRows, int kVectors>
using TileSums = Floats[kRows][kVectors];

// One product to each sum of rows [kFrom, kTo): that of a pixel of its row by what its channels have.
template <int kFrom, int kTo, int kRows, int kVectors, class PixelOf>
[[gnu::always_inline]] inline void add_products(const float* of_channels, TileSums<kRows, kVectors>& sums,
                                                PixelOf pixel_of) {
  Floats vectors[kVectors];
#pragma GCC unroll 2
  for (int j = 0; j < kVectors; ++j) vectors[j] = load(of_channels + j * kLanes);
#pragma GCC unroll 14
  for (int i = kFrom; i < kTo; ++i) {
    if constexpr (kVectors == 1) {
      sums[i][0] = add_product(pixel_of(i), vectors[0], sums[i][0]);
      continue;
    }
    const Floats pixel = broadcast(*pixel_of(i));
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sums[i][j] = add_product(pixel, vectors[j], sums[i][j]);
  }
}

inline int64_t smaller_of(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t slices_of(int64_t channels) { return (channels + kSlice - 1) / kSlice; }

template <class Work>
inline int64_t taps_of(const Work& work) {
  return work.height.taps * work.width.taps;
}
template <class Work>
inline int64_t pixels_of(const Work& work) {
  return work.height.out * work.width.out;
}

// Place of the input that output `out` reads with the tap; it may lie outside.
inline int64_t input_of(const ConvAxis& axis, int64_t out, int64_t tap) {
  return out * axis.stride + tap * axis.dilation - axis.padding;
}
inline bool is_inside(const ConvAxis& axis, int64_t place) { return place >= 0 && place < axis.in; }
// Whether taps of the output, or outputs of the tap, lie outside.
inline bool crosses_edge(const ConvAxis& axis, int64_t out) {
  return !is_inside(axis, input_of(axis, out, 0)) || !is_inside(axis, input_of(axis, out, axis.taps - 1));
}
inline bool tap_crosses_edge(const ConvAxis& axis, int64_t tap) {
  return !is_inside(axis, input_of(axis, 0, tap)) || !is_inside(axis, input_of(axis, axis.out - 1, tap));
}

// An image with zeros around it: as much as the taps reach.
struct PaddedPlane {
  int64_t rows = 0, row = 0;
  int64_t floats() const { return rows * row; }
};
inline int64_t reach_of(const ConvAxis& axis) {
  return (axis.out - 1) * axis.stride + (axis.taps - 1) * axis.dilation + 1;
}
template <class Work>
inline PaddedPlane plane_of_taps(const Work& work) {
  return {reach_of(work.height), reach_of(work.width)};
}

// So many planes, one after the other. Up to a vector after them is written to.
template <class Work>
inline void pad_planes(const Work& work, int64_t count, const float* from, float* to) {
  const ConvAxis &height = work.height, &width = work.width;
  const PaddedPlane plane = plane_of_taps(work);
  const int64_t begin = smaller_of(width.padding, plane.row), end = smaller_of(width.padding + width.in, plane.row);
  const int64_t whole = (end - begin) / kLanes * kLanes;
  const Mask rest = first_lanes(end - begin - whole);
  for (int64_t i = 0; i < count * plane.rows; ++i, to += plane.row) {
    const int64_t y = i % plane.rows - height.padding;
    if (!is_inside(height, y)) {
      for (int64_t x = 0; x < plane.row; x += kLanes) store(to + x, broadcast(0));
      continue;
    }
    const float* row = from + (i / plane.rows * height.in + y) * width.in;
    for (int64_t x = 0; x < begin; ++x) to[x] = 0;
    for (int64_t x = 0; x < whole; x += kLanes) store(to + begin + x, load(row + x));
    store(to + begin + whole, load(row + whole, rest));
    for (int64_t x = end; x < plane.row; ++x) to[x] = 0;
  }
}

// Whether a result has been too small for a float since this was made: only then, or of a -0, does rounding to the
// nearest give a -0.
class UnderflowWatch {
 public:
  UnderflowWatch() : before_(_mm_getcsr()) {
    _mm_setcsr(before_ & ~kUnderflow);
    keep_order();
  }
  ~UnderflowWatch() { _mm_setcsr(_mm_getcsr() | (before_ & kUnderflow)); }
  UnderflowWatch(const UnderflowWatch&) = delete;
  UnderflowWatch& operator=(const UnderflowWatch&) = delete;
  bool any() const {
    keep_order();
    return (_mm_getcsr() & kUnderflow) != 0;
  }

 private:
  static void keep_order() { asm volatile("" ::: "memory"); }  // of arithmetic, which compilers may move
  static constexpr unsigned kUnderflow = 0x10;
  unsigned before_;
};

}  // namespace

}  // namespace duet
