#pragma once

#include "graph/kernels/conv_planes.h"

// Convolution, and the gradient of its input.

namespace duet {

namespace {

int64_t conv_weights_size(const Convolution& work) {
  return slices_of(work.out_channels) * kSlice * work.channels * taps_of(work);
}
// Small images go through a slice's weights together, while the cache holds them.
inline int64_t images_at_once(const Convolution& work) {
  constexpr int64_t kEnough = 96;  // pixels
  return smaller_of(kEnough / pixels_of(work) + 1, work.images);
}
inline int64_t planes_size(const Convolution& work) { return work.channels * plane_of_taps(work).floats(); }
inline int64_t sums_size(const Convolution& work) { return pixels_of(work) * kSlice; }
int64_t conv_images_size(const Convolution& work) {
  return images_at_once(work) * (planes_size(work) + sums_size(work));
}

// As tiles read them: kSlice output channels side by side, zeros for those that are not there.
void conv_order_weights(const Convolution& work, float* ordered) {
  const int64_t taps = taps_of(work);
  for (int64_t first = 0; first < work.out_channels; first += kSlice) {
    for (int64_t block = 0; block < work.channels; block += kLanes) {
      const int64_t count = smaller_of(kLanes, work.channels - block);
      for (int64_t c = 0; c < count; ++c) {
        for (int64_t o = 0; o < kSlice; ++o) {
          const bool is_there = first + o < work.out_channels;
          const float* from =
              work.weights + (block + c) * work.weights_of_channel + (first + o) * work.weights_of_out_channel;
          for (int64_t t = 0; t < taps; ++t) ordered[(t * count + c) * kSlice + o] = is_there ? from[t] : 0;
        }
      }
      ordered += count * taps * kSlice;
    }
  }
}

// From the first pixel that an output reads to those of its taps, in the order of the weights.
class TapOffsets {
 public:
  explicit TapOffsets(const Convolution& work)
      : row_(step(work, work.height) * plane_of_taps(work).row),
        column_(step(work, work.width)),
        first_(work.reversed ? -(work.height.taps - 1) * row_ - (work.width.taps - 1) * column_ : 0) {}
  int64_t of(int64_t up, int64_t left) const { return first_ + up * row_ + left * column_; }

 private:
  static int64_t step(const Convolution& work, const ConvAxis& axis) {
    return work.reversed ? -axis.dilation : axis.dilation;
  }
  int64_t row_, column_, first_;
};

// Some channels of one image, a slice of output channels.
struct ConvPass {
  const Convolution& work;
  int64_t slice;
  int64_t begin, end;  // channels
  const float* planes;
  const float* weights;  // ordered
  float* sums;           // of each pixel
  TapOffsets offsets{work};
  PaddedPlane plane = plane_of_taps(work);

  bool is_first() const { return begin == 0; }
};

// The rows of a tile: pixels of one line, from (y, x) on, and where their sums lie.
struct ConvTile {
  const ConvPass& pass;
  int64_t y, x;
  float* sums;
};

inline Floats bias_of(const ConvPass& pass, int vector) {
  const int64_t channel = pass.slice * kSlice + vector * kLanes;
  return load(pass.work.bias + channel, first_lanes(pass.work.out_channels - channel));
}

template <int kRows, int kVectors>
inline void start_sums(const ConvTile& tile, TileSums<kRows, kVectors>& sums) {
  const ConvPass& pass = tile.pass;
  const bool from_bias = pass.is_first() && pass.work.bias != nullptr && !pass.work.adds_parts;
  const bool go_on = !pass.is_first() && !pass.work.adds_parts;
#pragma GCC unroll 2
  for (int j = 0; j < kVectors; ++j) {
    const Floats start = from_bias ? bias_of(pass, j) : broadcast(0);
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i) sums[i][j] = go_on ? load(tile.sums + i * kSlice + j * kLanes) : start;
  }
}

// To what was summed up before, or to the bias.
template <int kRows, int kVectors>
inline void add_part(const ConvTile& tile, TileSums<kRows, kVectors>& sums) {
  const ConvPass& pass = tile.pass;
  if (pass.is_first() && pass.work.bias == nullptr) return;
#pragma GCC unroll 2
  for (int j = 0; j < kVectors; ++j) {
    const Floats bias = pass.is_first() ? bias_of(pass, j) : broadcast(0);
#pragma GCC unroll 14
    for (int i = 0; i < kRows; ++i)
      sums[i][j] = add(sums[i][j], pass.is_first() ? bias : load(tile.sums + i * kSlice + j * kLanes));
  }
}

// What a tap has of some channels.
struct TapOfChannels {
  const float* pixel;  // the first row's
  int64_t plane, channels;
  const float* weights;
};

template <int kFrom, int kTo, int kRows, int kVectors>
[[gnu::always_inline]] inline void add_tap(TapOfChannels tap, int64_t step, TileSums<kRows, kVectors>& sums) {
  for (int64_t c = 0; c < tap.channels; ++c, tap.weights += kSlice, tap.pixel += tap.plane)
    add_products<kFrom, kTo>(tap.weights, sums,
                             [&](int i) __attribute__((always_inline)) { return tap.pixel + i * step; });
}

// The first row, the last or both may lie outside the image, where all is zero; all others are added.
template <int kRows, int kVectors>
[[gnu::always_inline]] inline void add_tap_inside(const TapOfChannels& tap, bool has_first, bool has_last,
                                                  TileSums<kRows, kVectors>& sums) {
  if (has_first && has_last) return add_tap<0, kRows>(tap, 1, sums);
  if (has_last) return add_tap<1, kRows>(tap, 1, sums);
  if (has_first) return add_tap<0, kRows - 1>(tap, 1, sums);
  add_tap<1, kRows - 1>(tap, 1, sums);
}

template <int kVectors, int kRows>
void sum_tile(const ConvTile& tile, NanWatch& nan) {
  const ConvPass& pass = tile.pass;
  const ConvAxis &height = pass.work.height, &width = pass.work.width;
  const int64_t plane = pass.plane.floats(), step = width.stride;
  const auto tap_of = [&](const ConvAxis& axis, int64_t i) { return pass.work.reversed ? axis.taps - 1 - i : i; };
  const float* first = pass.planes + tile.y * height.stride * pass.plane.row + tile.x * step;
  // With few channels asking takes longer than what it saves.
  const bool at_edge = step == 1 && pass.work.channels >= kLanes &&
                       (crosses_edge(width, tile.x) || crosses_edge(width, tile.x + kRows - 1));
  TileSums<kRows, kVectors> sums;
  start_sums(tile, sums);
  const float* weights = pass.weights;
  for (int64_t block = pass.begin; block < pass.end; block += kLanes) {
    const int64_t channels = smaller_of(kLanes, pass.end - block);
    for (int64_t up = 0; up < height.taps; ++up) {
      if (!is_inside(height, input_of(height, tile.y, tap_of(height, up)))) {
        weights += width.taps * channels * kSlice;
        continue;
      }
      for (int64_t left = 0; left < width.taps; ++left, weights += channels * kSlice) {
        const TapOfChannels tap{first + block * plane + pass.offsets.of(up, left), plane, channels, weights};
        if (at_edge) {
          const int64_t x = input_of(width, tile.x, tap_of(width, left));
          add_tap_inside(tap, x >= 0, x + kRows <= width.in, sums);
        } else {
          step == 1 ? add_tap<0, kRows>(tap, 1, sums) : add_tap<0, kRows>(tap, step, sums);
        }
      }
    }
  }
  if (pass.work.adds_parts) add_part(tile, sums);
#pragma GCC unroll 14
  for (int i = 0; i < kRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      nan.see(sums[i][j]);
      store(tile.sums + i * kSlice + j * kLanes, sums[i][j]);
    }
  }
}

// So many that the sums fill the registers.
template <int kVectors>
constexpr int kMostPixels = kLanes == 16 ? 14 : 12 / kVectors;

template <int kVectors, int kRows = kMostPixels<kVectors>>
void sum_pixels(const ConvTile& tile, int64_t pixels, NanWatch& nan) {
  if constexpr (kRows > 1) {
    if (pixels < kRows) return sum_pixels<kVectors, kRows - 1>(tile, pixels, nan);
  }
  sum_tile<kVectors, kRows>(tile, nan);
}

// Line by line, each in tiles of about the same size.
template <int kVectors>
inline void sum_lines(const ConvPass& pass, NanWatch& nan) {
  const int64_t width = pass.work.width.out, tiles = (width + kMostPixels<kVectors> - 1) / kMostPixels<kVectors>;
  for (int64_t y = 0; y < pass.work.height.out; ++y) {
    for (int64_t tile = 0; tile < tiles; ++tile) {
      const int64_t x = width * tile / tiles, end = width * (tile + 1) / tiles;
      sum_pixels<kVectors>({pass, y, x, pass.sums + (y * width + x) * kSlice}, end - x, nan);
    }
  }
}

inline void write_slice(const Convolution& work, int64_t slice, const float* sums, float* image) {
  const int64_t pixels = pixels_of(work);
  for (int64_t o = slice * kSlice; o < smaller_of((slice + 1) * kSlice, work.out_channels); o += kLanes) {
    const int64_t channels = smaller_of(kLanes, work.out_channels - o);
    for (int64_t pixel = 0; pixel < pixels; pixel += kLanes)
      transpose_some({sums + pixel * kSlice + o % kSlice, kSlice, smaller_of(kLanes, pixels - pixel), channels},
                     image + o * pixels + pixel, pixels);
  }
}

inline NanWatch convolve(const Convolution& work, const IndexRange& images, const float* ordered, float* scratch) {
  NanWatch nan;
  const int64_t planes = planes_size(work), count = images.end - images.begin;
  const int64_t in_image = work.channels * work.height.in * work.width.in;
  float* const sums = scratch + images_at_once(work) * planes;
  for (int64_t i = 0; i < count; ++i)
    pad_planes(work, work.channels, work.in + (images.begin + i) * in_image, scratch + i * planes);
  for (int64_t slice = 0; slice < slices_of(work.out_channels); ++slice) {
    const bool is_narrow = work.out_channels - slice * kSlice <= kLanes;
    for (int64_t begin = 0; begin < work.channels; begin += work.channels_at_once) {
      const int64_t end = smaller_of(begin + work.channels_at_once, work.channels);
      for (int64_t i = 0; i < count; ++i) {
        const ConvPass pass{work, slice, begin, end, scratch + i * planes, ordered, sums + i * sums_size(work)};
        is_narrow ? sum_lines<1>(pass, nan) : sum_lines<2>(pass, nan);
      }
      ordered += (end - begin) * taps_of(work) * kSlice;
    }
    for (int64_t i = 0; i < count; ++i)
      write_slice(work, slice, sums + i * sums_size(work),
                  work.out + (images.begin + i) * work.out_channels * pixels_of(work));
  }
  return nan;
}

// Whether a result is zero that saw zeros around the image: oneDNN may leave those out, and a sum that was -0 on its
// way is then -0, not 0.
inline bool has_zero_at_edge(const Convolution& work, int64_t image) {
  const float* out = work.out + image * work.out_channels * pixels_of(work);
  for (int64_t o = 0; o < work.out_channels; ++o) {
    for (int64_t y = 0; y < work.height.out; ++y) {
      for (int64_t x = 0; x < work.width.out; ++x, ++out) {
        if (*out == 0 && (crosses_edge(work.height, y) || crosses_edge(work.width, x))) return true;
      }
    }
  }
  return false;
}

inline bool has_minus_zero(const Convolution& work) {
  for (int64_t o = 0; o < work.out_channels && work.bias != nullptr; ++o) {
    if (work.bias[o] == 0 && __builtin_signbit(work.bias[o]) != 0) return true;
  }
  return false;
}

bool conv_images(const Convolution& work, const IndexRange& images, const float* ordered, float* scratch) {
  const bool may_start_at_minus_zero = has_minus_zero(work);
  NanWatch nan;
  for (int64_t begin = images.begin; begin < images.end; begin += images_at_once(work)) {
    const IndexRange some{begin, smaller_of(begin + images_at_once(work), images.end)};
    const UnderflowWatch underflow;
    nan.see(convolve(work, some, ordered, scratch));
    if (!underflow.any() && !may_start_at_minus_zero) continue;
    for (int64_t image = some.begin; image < some.end; ++image) {
      if (has_zero_at_edge(work, image)) return false;
    }
  }
  return !nan.any();
}

}  // namespace

}  // namespace duet
