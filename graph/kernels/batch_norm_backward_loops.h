#pragma once

#include <torch/headeronly/version.h>
#include "graph/kernels/image_kernels.h"

// Batch norm in training, backward, with the vector operations of avx2_simd.h, which is included before: ATen has no
// other vectors for it, also where it has AVX-512, and they decide how a plane is summed.

namespace duet {

namespace {

constexpr int kPlanesAtOnce = 4;  // whose sums stay in registers

// What ATen's sources leave to its compiler, another one from LibTorch 2.13 on: whether the products of a plane's last
// pixels are fused, and which of two NaN stays where there are such pixels.
constexpr bool kNewerCompiler = TORCH_VERSION_MINOR >= 13;

inline Floats add_last(Floats sums, Floats last) { return kNewerCompiler ? add(last, sums) : add(sums, last); }

inline Floats add_last_product(Floats sums, Floats first, Floats second) {
  return kNewerCompiler ? multiply_add(second, first, sums) : add(multiply(first, second), sums);
}

struct GradSums {
  double grad = 0, product = 0;  // of grad; of grad and x without its mean
};

// Each plane in float, vector by vector; the planes one after the other in double.
template <int kPlanes>
void add_planes(GradSums& sums, const BatchNormBackward& work, int64_t image, int64_t channel) {
  const ImageBatch& batch = work.batch;
  const float* x = plane_of(batch, work.x, image, channel);
  const float* grad = plane_of(batch, work.grad, image, channel);
  const int64_t step = batch.channels * batch.pixels;
  const Floats mean = broadcast(work.mean[channel]);
  Floats grads[kPlanes], products[kPlanes];
#pragma GCC unroll 4
  for (int p = 0; p < kPlanes; ++p) {
    grads[p] = load(grad + p * step);
    products[p] = multiply(subtract(load(x + p * step), mean), grads[p]);
  }
  int64_t i = kLanes;
  for (; i + kLanes <= batch.pixels; i += kLanes) {
#pragma GCC unroll 4
    for (int p = 0; p < kPlanes; ++p) {
      const Floats g = load(grad + p * step + i);
      grads[p] = add(grads[p], g);
      products[p] = add(products[p], multiply(subtract(load(x + p * step + i), mean), g));
    }
  }
  const Mask rest = first_lanes(batch.pixels - i);
#pragma GCC unroll 4
  for (int p = 0; p < kPlanes; ++p) {
    const Floats g = load(grad + p * step + i, rest);
    const Floats without_mean = subtract(load(x + p * step + i, rest), mean);
    const Floats sum = select(rest, add_last(grads[p], g), grads[p]);
    const bool swapped = kNewerCompiler && i < batch.pixels;
    const float grad_sum = sum_of_lanes(swapped ? _mm256_permute2f128_ps(sum, sum, 0x01) : sum);
    const float product_sum = sum_of_lanes(select(rest, add_last_product(products[p], without_mean, g), products[p]));
    sums.grad = add(sums.grad, double{grad_sum});
    sums.product = add(sums.product, double{product_sum});
  }
}

GradSums sums_of_channel(const BatchNormBackward& work, int64_t channel) {
  GradSums sums;
  int64_t image = 0;
  for (; image + kPlanesAtOnce <= work.batch.images; image += kPlanesAtOnce) {
    add_planes<kPlanesAtOnce>(sums, work, image, channel);
  }
  for (; image < work.batch.images; ++image) add_planes<1>(sums, work, image, channel);
  return sums;
}

struct GradTerms {
  Floats mean, slope, mean_of_grad, inverse_std, weight;
};

inline Floats grad_of(const GradTerms& terms, Floats x, Floats grad) {
  const Floats without_mean = subtract(x, terms.mean);
  const Floats rest = subtract_product(without_mean, terms.slope, subtract(grad, terms.mean_of_grad));
  return multiply(multiply(rest, terms.inverse_std), terms.weight);
}

inline void write_plane(const GradTerms& terms, const BatchNormBackward& work, int64_t image, int64_t channel) {
  const int64_t at = plane_of(work.batch, work.x, image, channel) - work.x;
  const auto write = [&](int64_t i) { store(work.grad_x + i, grad_of(terms, load(work.x + i), load(work.grad + i))); };
  int64_t i = 0;
  for (; i + kLanes <= work.batch.pixels; i += kLanes) write(at + i);
  if (i < work.batch.pixels) write(at + work.batch.pixels - kLanes);  // some pixels again
}

GradTerms terms_of(const BatchNormBackward& work, int64_t channel, const GradSums& sums) {
  const int64_t count = work.batch.images * work.batch.pixels;
  const Floats deviation = broadcast(work.inverse_std[channel]);
  const Floats product = broadcast(static_cast<float>(sums.product));
  const Floats slope = divide(multiply(multiply(product, deviation), deviation), broadcast(static_cast<float>(count)));
  const auto mean_of_grad = static_cast<float>(sums.grad / static_cast<double>(count));
  const float weight = work.weight != nullptr ? work.weight[channel] : 1.0F;
  return {broadcast(work.mean[channel]), slope, broadcast(mean_of_grad), deviation, broadcast(weight)};
}

void batch_norm_backward(const BatchNormBackward& work, const IndexRange& channels) {
  for (int64_t c = channels.begin; c < channels.end; ++c) {
    const GradSums sums = sums_of_channel(work, c);
    const GradTerms terms = terms_of(work, c, sums);
    for (int64_t image = 0; work.grad_x != nullptr && image < work.batch.images; ++image) {
      write_plane(terms, work, image, c);
    }
    const double deviation = work.inverse_std[c];
    if (work.grad_weight != nullptr) work.grad_weight[c] = static_cast<float>(multiply(deviation, sums.product));
    if (work.grad_bias != nullptr) work.grad_bias[c] = static_cast<float>(sums.grad);
  }
}

}  // namespace

}  // namespace duet
