#pragma once

#include "graph/kernels/conv_planes.h"

// Convolution, and the gradient of its input. The rows of a tile are pixels.

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
inline int64_t sums_size(const Convolution& work) { return (pixels_of(work) + kTileRows) * kSlice; }
int64_t conv_images_size(const Convolution& work) {
  return images_at_once(work) * (planes_size(work) + sums_size(work));
}

// As tiles read them: kSlice output channels side by side, zeros for those that are not there.
void conv_order_weights(const Convolution& work, float* ordered) {
  const int64_t taps = taps_of(work);
  for (int64_t first = 0; first < work.out_channels; first += kSlice) {
    for (int64_t block = 0; block < work.channels; block += kOrderedChannels) {
      const int64_t count = smaller_of(kOrderedChannels, work.channels - block);
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
  int64_t plane = plane_of_taps(work).floats();

  bool is_first() const { return begin == 0; }
};

template <int kVectors>
inline void start_sums(const ConvPass& pass, const float* before, TileSums<kVectors>& sums) {
  const Convolution& work = pass.work;
  const bool from_bias = pass.is_first() && work.bias != nullptr;
  const bool go_on = !pass.is_first() && !work.adds_parts;
#pragma GCC unroll 2
  for (int j = 0; j < kVectors; ++j) {
    const int64_t channel = pass.slice * kSlice + j * kLanes;
    const Floats start = from_bias ? load(work.bias + channel, first_lanes(work.out_channels - channel)) : broadcast(0);
#pragma GCC unroll 6
    for (int i = 0; i < kTileRows; ++i) sums[i][j] = go_on ? load(before + i * kSlice + j * kLanes) : start;
  }
}

template <int kVectors>
inline void sum_tile(const ConvPass& pass, const int64_t (&places)[kTileRows], float* to, NanWatch& nan) {
  TileSums<kVectors> sums;
  start_sums(pass, to, sums);
  const float* weights = pass.weights;
  const float* const pixels[kTileRows] = {pass.planes + places[0], pass.planes + places[1], pass.planes + places[2],
                                          pass.planes + places[3], pass.planes + places[4], pass.planes + places[5]};
  for (int64_t block = pass.begin; block < pass.end; block += kOrderedChannels) {
    const int64_t begin = block * pass.plane, end = smaller_of(block + kOrderedChannels, pass.end) * pass.plane;
    for (int64_t up = 0; up < pass.work.height.taps; ++up) {
      for (int64_t left = 0; left < pass.work.width.taps; ++left) {
        const int64_t offset = pass.offsets.of(up, left);
        for (int64_t at = begin + offset; at < end + offset; at += pass.plane, weights += kSlice)
          add_products(weights, pixels, at, sums);
      }
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      float* at = to + i * kSlice + j * kLanes;
      const Floats sum = pass.work.adds_parts && !pass.is_first() ? add(sums[i][j], load(at)) : sums[i][j];
      nan.see(sum);
      store(at, sum);
    }
  }
}

// Where the pixels of outputs lie, one after the other.
class PixelPlaces {
 public:
  explicit PixelPlaces(const Convolution& work) : work_(work), row_(plane_of_taps(work).row) {}

  int64_t next() {
    const int64_t place = y_ * work_.height.stride * row_ + x_ * work_.width.stride;
    if (++x_ == work_.width.out) x_ = 0, ++y_;
    if (y_ == work_.height.out) y_ = work_.height.out - 1;  // what a tile has left over
    return place;
  }

 private:
  const Convolution& work_;
  int64_t row_, y_ = 0, x_ = 0;
};

inline void sum_pixels(const ConvPass& pass, NanWatch& nan) {
  const int64_t pixels = pixels_of(pass.work), left = pass.work.out_channels - pass.slice * kSlice;
  PixelPlaces places(pass.work);
  for (int64_t pixel = 0; pixel < pixels; pixel += kTileRows) {
    int64_t of_tile[kTileRows];
    for (int64_t& place : of_tile) place = places.next();
    float* to = pass.sums + pixel * kSlice;
    left > kLanes ? sum_tile<2>(pass, of_tile, to, nan) : sum_tile<1>(pass, of_tile, to, nan);
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
    for (int64_t begin = 0; begin < work.channels; begin += work.channels_at_once) {
      const int64_t end = smaller_of(begin + work.channels_at_once, work.channels);
      for (int64_t i = 0; i < count; ++i)
        sum_pixels({work, slice, begin, end, scratch + i * planes, ordered, sums + i * sums_size(work)}, nan);
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
