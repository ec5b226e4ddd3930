#pragma once

#include "graph/kernels/image_kernels.h"

// Batch norm in training, forward, with the vector operations of *_simd.h, which is included before.
//
// ATen sums the batch of a channel in double, pixel after pixel, twice: for the mean, and for the squares of what is
// left without it. Such a sum cannot be cut into parts; kLanes channels are summed at the same time instead, one in
// each lane.

namespace duet {

namespace {

struct JustLoad {
  Floats operator()(int, Floats x) const { return x; }
};

struct SquareWithoutMean {
  const float* mean;  // by lane
  Floats operator()(int lane, Floats x) const {
    const Floats difference = subtract(x, broadcast(mean[lane]));
    return multiply(difference, difference);
  }
};

// kLanes channels, or fewer: the last one is then summed several times.
template <class Term>
void sum_channels(const BatchNormForward& work, const IndexRange& channels, Term term, double* sums) {
  const ImageBatch& batch = work.batch;
  int64_t channel[kLanes];
  for (int i = 0; i < kLanes; ++i) {
    channel[i] = channels.begin + i < channels.end ? channels.begin + i : channels.end - 1;
  }
  Sums sum;
  for (int64_t image = 0; image < batch.images; ++image) {
    const float* from[kLanes];
    for (int i = 0; i < kLanes; ++i) from[i] = plane_of(batch, work.x, image, channel[i]);
    for (int64_t pixel = 0; pixel < batch.pixels; pixel += kLanes) {
      const int64_t count = batch.pixels - pixel;
      const Mask mask = first_lanes(count);
      Floats rows[kLanes];
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) rows[i] = term(i, load(from[i] + pixel, mask));
      transpose(rows);
#pragma GCC unroll 16
      for (int i = 0; i < kLanes; ++i) {
        if (i < count) add_to(sum, rows[i]);
      }
    }
  }
  store(sums, sum);
}

struct LaneMoments {  // as ATen hands them on: rounded to float
  float mean[kLanes], squares[kLanes];
};

struct ChannelMoments {
  float mean, squares;
  int64_t count;
};

inline LaneMoments moments_of(const BatchNormForward& work, const IndexRange& channels) {
  const ImageBatch& batch = work.batch;
  const auto count = static_cast<double>(batch.images * batch.pixels);
  LaneMoments moments;
  double sums[kLanes];
  sum_channels(work, channels, JustLoad{}, sums);
  for (int i = 0; i < kLanes; ++i) moments.mean[i] = static_cast<float>(sums[i] / count);
  sum_channels(work, channels, SquareWithoutMean{moments.mean}, sums);
  for (int i = 0; i < kLanes; ++i) moments.squares[i] = static_cast<float>(sums[i]);
  return moments;
}

inline void keep(const ChannelStatistics& to, int64_t channel, const ChannelMoments& moments) {
  const double variance = moments.squares / static_cast<float>(moments.count);
  const bool is_zero = variance == 0 && to.epsilon == 0;
  to.mean[channel] = moments.mean;
  to.inverse_std[channel] = is_zero ? 0.0F : static_cast<float>(1 / __builtin_sqrt(variance + to.epsilon));
  const auto momentum = static_cast<float>(to.momentum);
  if (to.running_mean != nullptr) {
    float& running = to.running_mean[channel];
    running = add((1 - momentum) * running, momentum * moments.mean);
  }
  if (to.running_variance != nullptr) {
    float& running = to.running_variance[channel];
    const double unbiased = moments.squares / static_cast<float>(moments.count - 1);
    const double rest = (1 - momentum) * running;  // rounded to float first
    running = static_cast<float>(add(static_cast<double>(momentum) * unbiased, rest));
  }
}

struct Line {
  Floats scale, shift;
  Floats operator()(const float* x) const { return multiply_add(scale, load(x), shift); }
};

inline void write_line(const Line& line, const float* x, float* y, int64_t pixels) {
  int64_t i = 0;
  for (; i + kLanes <= pixels; i += kLanes) store(y + i, line(x + i));
  if (i == pixels) return;
  i = pixels - kLanes;  // some pixels again
  store(y + i, line(x + i));
}

void batch_norm_normalize(const BatchNormForward& work, const IndexRange& planes) {
  for (int64_t plane = planes.begin; plane < planes.end; ++plane) {
    const int64_t channel = plane % work.batch.channels, first = plane * work.batch.pixels;
    const float weight = work.weight != nullptr ? work.weight[channel] : 1.0F;
    const float bias = work.bias != nullptr ? work.bias[channel] : 0.0F;
    const Floats scale = multiply(broadcast(work.statistics.inverse_std[channel]), broadcast(weight));
    const Floats shift = subtract_product(broadcast(work.statistics.mean[channel]), scale, broadcast(bias));
    write_line({scale, shift}, work.x + first, work.y + first, work.batch.pixels);
  }
}

void batch_norm_statistics(const BatchNormForward& work, const IndexRange& channels) {
  for (int64_t begin = channels.begin; begin < channels.end; begin += kLanes) {
    const IndexRange some{begin, begin + kLanes < channels.end ? begin + kLanes : channels.end};
    const LaneMoments moments = moments_of(work, some);
    for (int64_t c = some.begin; c < some.end; ++c) {
      const int64_t lane = c - begin;
      keep(work.statistics, c, {moments.mean[lane], moments.squares[lane], work.batch.images * work.batch.pixels});
    }
  }
}

}  // namespace

}  // namespace duet
