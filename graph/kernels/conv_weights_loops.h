#pragma once

#include "graph/kernels/conv_loops.h"

// The gradient of a convolution's weights, and of its bias.
//
// The rows of a tile are pairs of a channel and a tap. Its sums go through the pixels of some images, are put aside,
// and go on with the next ones.

namespace duet {

namespace {

constexpr int kTileRows = 6;

// How the scratch memory is used.
struct WeightsPlan {
  PaddedPlane plane;   // of one channel
  int64_t pixels = 0;  // of grad
  int64_t slices = 0;
  int64_t together = 0;  // images

  explicit WeightsPlan(const ConvWeightsGradient& work)
      : plane(plane_of_taps(work)), pixels(pixels_of(work)), slices(slices_of(work.out_channels)) {
    constexpr int64_t kSecondCache = 1 << 16;  // floats
    const int64_t weights = work.channels * taps_of(work) * work.out_channels;
    const int64_t fits = kSecondCache + weights / 8;  // the sums of many weights take time to put aside
    together = smaller_of(fits / (work.channels * plane.floats() + kSlice * pixels) + 1, work.images);
  }

  int64_t planes_size(int64_t channels) const { return channels * together * plane.floats(); }
  int64_t grad_size() const { return together * pixels * kSlice; }
  // Of whole tiles.
  int64_t slice_size(int64_t pairs) const { return (pairs + kTileRows - 1) / kTileRows * kTileRows * kSlice; }
  int64_t sums_size(int64_t pairs) const { return slices * slice_size(pairs); }
};

int64_t conv_gradient_size(const ConvWeightsGradient& work, int64_t channels) {
  const WeightsPlan plan(work);
  return plan.planes_size(channels) + plan.grad_size() + plan.sums_size(channels * taps_of(work)) +
         plan.slices * kSlice;
}

// A pixel's kSlice channels, from `first` on, side by side; zeros for those that are not there.
inline void transpose_grad(const ConvWeightsGradient& work, int64_t first, const float* grad, float* to) {
  const int64_t pixels = pixels_of(work);
  for (int64_t begin = 0; begin < kSlice; begin += kLanes) {
    const int64_t channels = smaller_of(kLanes, work.out_channels - first - begin);
    for (int64_t i = 0; channels < kLanes && i < pixels; ++i) store(to + i * kSlice + begin, broadcast(0));
    for (int64_t pixel = 0; channels > 0 && pixel < pixels; pixel += kLanes)
      transpose_some({grad + (first + begin) * pixels + pixel, pixels, channels, smaller_of(kLanes, pixels - pixel)},
                     to + pixel * kSlice + begin, kSlice);
  }
}

// Some images, some channels.
struct WeightsTile {
  const ConvWeightsGradient& work;
  const WeightsPlan& plan;
  int64_t images;
  const float* planes;
  const float* grad;
  const float* pixels[kTileRows];  // the first of each row
  float* sums;
};

template <int kVectors>
inline void add_pixels(const WeightsTile& tile, NanWatch& nan) {
  const ConvAxis &height = tile.work.height, &width = tile.work.width;
  TileSums<kTileRows, kVectors> sums;
#pragma GCC unroll 6
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) sums[i][j] = load(tile.sums + i * kSlice + j * kLanes);
  }
  const float* grad = tile.grad;
  for (int64_t image = 0; image < tile.images; ++image) {
    for (int64_t y = 0; y < height.out; ++y) {
      int64_t at = image * tile.plan.plane.floats() + y * height.stride * tile.plan.plane.row;
      for (int64_t x = 0; x < width.out; ++x, at += width.stride, grad += kSlice)
        add_products<0, kTileRows>(grad, sums,
                                   [&](int i) __attribute__((always_inline)) { return tile.pixels[i] + at; });
    }
  }
#pragma GCC unroll 6
  for (int i = 0; i < kTileRows; ++i) {
#pragma GCC unroll 2
    for (int j = 0; j < kVectors; ++j) {
      nan.see(sums[i][j]);
      store(tile.sums + i * kSlice + j * kLanes, sums[i][j]);
    }
  }
}

// Where the pair's pixels begin; of one that is not there, those of the last.
inline int64_t offset_of_pair(const WeightsTile& tile, int64_t pair, int64_t pairs) {
  const ConvWeightsGradient& work = tile.work;
  const int64_t taps = taps_of(work), at = smaller_of(pair, pairs - 1);
  const int64_t y = at % taps / work.width.taps * work.height.dilation;
  const int64_t x = at % work.width.taps * work.width.dilation;
  return at / taps * tile.plan.together * tile.plan.plane.floats() + y * tile.plan.plane.row + x;
}

inline void add_slice(WeightsTile tile, int64_t pairs, int64_t out_channels, NanWatch& nan) {
  for (int64_t first = 0; first < pairs; first += kTileRows, tile.sums += kTileRows * kSlice) {
    for (int i = 0; i < kTileRows; ++i) tile.pixels[i] = tile.planes + offset_of_pair(tile, first + i, pairs);
    out_channels > kLanes ? add_pixels<2>(tile, nan) : add_pixels<1>(tile, nan);
  }
}

inline void add_to_bias(const float* grad, int64_t pixels, float* sums) {
  Floats low = load(sums), high = load(sums + kLanes);
  for (int64_t i = 0; i < pixels; ++i, grad += kSlice) {
    low = add(low, load(grad));
    high = add(high, load(grad + kLanes));
  }
  store(sums, low);
  store(sums + kLanes, high);
}

// `sums` of the channels, a slice after the other, to where they belong.
inline void write_gradients(const ConvWeightsGradient& work, const IndexRange& channels, const float* sums) {
  const int64_t pairs = (channels.end - channels.begin) * taps_of(work);
  const int64_t slice_size = WeightsPlan(work).slice_size(pairs);
  for (int64_t o = 0; o < work.out_channels; ++o) {
    const float* from = sums + o / kSlice * slice_size + o % kSlice;
    float* to = work.grad_weights + (o * work.channels + channels.begin) * taps_of(work);
    for (int64_t pair = 0; pair < pairs; ++pair) to[pair] = from[pair * kSlice];
  }
}

// See that of a convolution.
inline bool has_zero_at_edge(const ConvWeightsGradient& work, const IndexRange& channels) {
  const int64_t taps = taps_of(work);
  for (int64_t o = 0; o < work.out_channels; ++o) {
    for (int64_t i = channels.begin * taps; i < channels.end * taps; ++i) {
      const int64_t y = i % taps / work.width.taps, x = i % work.width.taps;
      const bool is_zero = work.grad_weights[o * work.channels * taps + i] == 0;
      if (is_zero && (tap_crosses_edge(work.height, y) || tap_crosses_edge(work.width, x))) return true;
    }
  }
  return false;
}

bool conv_weights_gradient(const ConvWeightsGradient& work, const IndexRange& channels, float* scratch) {
  const WeightsPlan plan(work);
  const int64_t count = channels.end - channels.begin, pairs = count * taps_of(work);
  float* const planes = scratch;
  float* const grad = planes + plan.planes_size(count);
  float* const sums = grad + plan.grad_size();
  float* const bias = sums + plan.sums_size(pairs);
  NanWatch nan;
  const UnderflowWatch underflow;
  for (int64_t i = 0; i < plan.sums_size(pairs); ++i) sums[i] = 0;
  for (int64_t i = 0; i < plan.slices * kSlice; ++i) bias[i] = 0;
  const bool has_bias = work.grad_bias != nullptr && channels.begin == 0;
  const int64_t in_plane = work.height.in * work.width.in;
  for (int64_t begin = 0; begin < work.images; begin += plan.together) {
    const int64_t images = smaller_of(plan.together, work.images - begin);
    for (int64_t c = 0; c < count; ++c) {
      for (int64_t i = 0; i < images; ++i)
        pad_planes(work, 1, work.in + ((begin + i) * work.channels + channels.begin + c) * in_plane,
                   planes + (c * plan.together + i) * plan.plane.floats());
    }
    for (int64_t slice = 0; slice < plan.slices; ++slice) {
      for (int64_t i = 0; i < images; ++i)
        transpose_grad(work, slice * kSlice, work.grad + (begin + i) * work.out_channels * plan.pixels,
                       grad + i * plan.pixels * kSlice);
      if (has_bias) add_to_bias(grad, images * plan.pixels, bias + slice * kSlice);
      add_slice({work, plan, images, planes, grad, {}, sums + slice * plan.slice_size(pairs)}, pairs,
                work.out_channels - slice * kSlice, nan);
    }
  }
  write_gradients(work, channels, sums);
  for (int64_t o = 0; o < work.out_channels && has_bias; ++o) {
    work.grad_bias[o] = bias[o];
    nan.see(broadcast(bias[o]));
  }
  return !nan.any() && !(underflow.any() && has_zero_at_edge(work, channels));
}

constexpr ConvKernels kConvKernels{kLanes,      conv_weights_size,  conv_images_size,     conv_order_weights,
                                   conv_images, conv_gradient_size, conv_weights_gradient};

}  // namespace

}  // namespace duet
