#pragma once

#include <cstdint>
#include "graph/kernels/index_range.h"

// Max pooling and batch norm of float images that lie plane by plane (NCHW): ATen's bits, less time. No BLAS takes
// part, so the order of the arithmetic is that of ATen's sources, the same for every shape.

namespace duet {

// Windows over a plane of `height` x `width`, without dilation. What reaches over an edge is left out.
struct MaxPool {
  int64_t height = 0, width = 0;
  int64_t out_height = 0, out_width = 0;
  int64_t window_height = 0, window_width = 0;
  int64_t stride_height = 0, stride_width = 0;
  int64_t padding_height = 0, padding_width = 0;
  bool operator==(const MaxPool&) const = default;
};

struct MaxPoolForward {
  MaxPool pool;
  const float* x = nullptr;
  float* y = nullptr;
  int64_t* indices = nullptr;  // in the plane
};

struct MaxPoolBackward {
  MaxPool pool;
  const float* grad = nullptr;
  const int64_t* indices = nullptr;  // those of the forward
  float* grad_x = nullptr;
};

// Each call does some of the planes.
struct MaxPoolKernels {
  // The greatest of each window and where it lies: the first of equal ones, the last NaN if there is one.
  void (*forward)(const MaxPoolForward& work, const IndexRange& planes) = nullptr;
  // Zeros, and each element of grad added where its index says, in order.
  void (*backward)(const MaxPoolBackward& work, const IndexRange& planes) = nullptr;
};

// x[image][channel][pixel].
struct ImageBatch {
  int64_t images = 0, channels = 0, pixels = 0;
};

// Static: each file keeps the one that is compiled for its kind of CPU.
static inline const float* plane_of(const ImageBatch& batch, const float* x, int64_t image, int64_t channel) {
  return x + (image * batch.channels + channel) * batch.pixels;
}

// What batch norm keeps of each channel.
struct ChannelStatistics {
  float* mean = nullptr;
  float* inverse_std = nullptr;
  float* running_mean = nullptr;  // null: not kept
  float* running_variance = nullptr;
  double momentum = 0, epsilon = 0;
};

// y = x * scale + shift.
struct BatchNormForward {
  ImageBatch batch;
  const float* x = nullptr;
  float* y = nullptr;
  const float* weight = nullptr;  // null: ones
  const float* bias = nullptr;    // null: zeros
  ChannelStatistics statistics;
};

struct BatchNormBackward {
  ImageBatch batch;
  const float* grad = nullptr;
  const float* x = nullptr;
  const float* weight = nullptr;  // null: ones
  const float* mean = nullptr;
  const float* inverse_std = nullptr;
  float* grad_x = nullptr;  // null: not wanted, as the two below
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
};

constexpr int64_t kFewestPixels = 16;  // of a plane that the kernels below take

// In training: with the statistics of the batch. Each call does some of the channels, or planes.
struct BatchNormKernels {
  void (*statistics)(const BatchNormForward& work, const IndexRange& channels) = nullptr;
  void (*normalize)(const BatchNormForward& work, const IndexRange& planes) = nullptr;  // once those are there
  void (*backward)(const BatchNormBackward& work, const IndexRange& channels) = nullptr;
};

}  // namespace duet
