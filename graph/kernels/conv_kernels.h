#pragma once

#include <cstdint>
#include "graph/kernels/image_kernels.h"

// Convolutions of float images that lie plane by plane (NCHW), and their gradients: the bits of oneDNN's kernels for
// AVX2 and AVX-512, less time, since nothing is brought into another layout and back. Each element is summed up by
// multiply-adds one after the other.

namespace duet {

// One dimension of the planes. Tap t of output i reads input i * stride + t * dilation - padding, if it is there.
struct ConvAxis {
  int64_t in = 0, out = 0, taps = 0, stride = 1, dilation = 1, padding = 0;
};

// out[image][o][pixel] = bias[o] + sum over channels and taps: in[image][channel][...] * weight, as many channels as a
// vector has numbers tap by tap, in the order of the weights, then the next ones.
struct Convolution {
  int64_t images = 0, channels = 0, out_channels = 0;
  ConvAxis height, width;
  const float* in = nullptr;
  const float* weights = nullptr;                              // of one tap after the other
  int64_t weights_of_channel = 0, weights_of_out_channel = 0;  // how far apart they lie
  bool reversed = false;                                       // the first tap of an axis lies where the last one would
  const float* bias = nullptr;                                 // null: zeros
  int64_t channels_at_once = 0;  // whole vectors: of as many the weights should fit into the cache
  // Each channels_at_once are summed up from 0, and added to those before, the first to the bias; else all one after
  // the other, from the bias on.
  bool adds_parts = false;
  float* out = nullptr;
};

// grad_weights[o][c][t] = sum over images and pixels, in order: grad[image][o][pixel] * in[image][c][...]
struct ConvWeightsGradient {
  int64_t images = 0, channels = 0, out_channels = 0;
  ConvAxis height, width;
  const float* in = nullptr;
  const float* grad = nullptr;
  float* grad_weights = nullptr;
  float* grad_bias = nullptr;  // null: not wanted
};

// False: a result is NaN, or a zero of a sign that the zeros around an image may have changed. Scratch memory is
// counted in floats.
struct ConvKernels {
  int64_t lanes = 0;                                           // of a vector
  int64_t (*weights_size)(const Convolution& work) = nullptr;  // of scratch that all parts share
  int64_t (*images_size)(const Convolution& work) = nullptr;   // of scratch of each part
  void (*order_weights)(const Convolution& work, float* ordered) = nullptr;
  bool (*images)(const Convolution& work, const IndexRange& images, const float* ordered, float* scratch) = nullptr;

  int64_t (*gradient_size)(const ConvWeightsGradient& work, int64_t channels) = nullptr;  // of scratch of a part
  // Of some of the channels; the part with the first one does the bias.
  bool (*weights_gradient)(const ConvWeightsGradient& work, const IndexRange& channels, float* scratch) = nullptr;
};

}  // namespace duet
