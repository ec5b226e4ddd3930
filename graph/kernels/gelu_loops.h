#pragma once

#include <math.h>
#include "graph/kernels/pointwise_loops.h"
#include "graph/kernels/vector_tanh.h"

// GELU, over the vectors of avx2_simd.h or avx512_simd.h. With tanh: ATen's formulas, with a fused multiply-add exactly
// where ATen's kernels for these instructions have one (compiled with -ffp-contract=off, so that the compiler adds
// none). ATen computes in pairs of vectors and takes libm's tanh for what is left over; so do these.

namespace duet {

namespace {

constexpr float kBeta = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kKappa = 0.044715F;

void gelu_pair(const float* x, float* tanh, float* y) {
  Floats t[2];
  for (int i = 0; i < 2; ++i) {
    const Floats v = load(x + i * kLanes);
    const Floats cube = multiply(multiply(v, v), v);
    t[i] = multiply(broadcast(kBeta), multiply_add(cube, broadcast(kKappa), v));
  }
  tanh_of_pair(t);
  for (int i = 0; i < 2; ++i) {
    store(tanh + i * kLanes, t[i]);
    const Floats half = multiply(broadcast(0.5F), load(x + i * kLanes));
    store(y + i * kLanes, multiply(half, add(broadcast(1.0F), t[i])));
  }
}

void gelu_forward(const float* x, float* tanh, float* y, int64_t count) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) gelu_pair(x + i, tanh + i, y + i);
  for (; i < count; ++i) {
    const float cube = x[i] * x[i] * x[i];
    tanh[i] = tanhf(kBeta * multiply_add(cube, kKappa, x[i]));
    y[i] = multiply(0.5F * x[i], 1.0F + tanh[i]);
  }
}

void gelu_backward_pair(const float* grad, const float* x, const float* tanh, float* grad_x) {
  const Floats one = broadcast(1.0F);
  const Floats half = broadcast(0.5F);
  for (int64_t i = 0; i < 2 * kLanes; i += kLanes) {
    const Floats v = load(x + i);
    const Floats t = load(tanh + i);
    const Floats inner_derivative =
        multiply(broadcast(kBeta), multiply_add(multiply(v, v), broadcast(3.0F * kKappa), one));
    const Floats tanh_derivative = subtract_product(t, t, one);
    const Floats right = multiply(multiply(multiply(half, v), tanh_derivative), inner_derivative);
    const Floats derivative = multiply_add(add(one, t), half, right);
    store(grad_x + i, multiply(derivative, load(grad + i)));
  }
}

void gelu_backward(const GeluBackward& work) {
  const auto [grad, x, tanh, grad_x, count] = work;
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) gelu_backward_pair(grad + i, x + i, tanh + i, grad_x + i);
  for (; i < count; ++i) {
    const float inner_derivative = kBeta * __builtin_fmaf(x[i] * x[i], 3.0F * kKappa, 1.0F);
    const float tanh_derivative = __builtin_fmaf(-tanh[i], tanh[i], 1.0F);
    const float right = multiply(multiply(0.5F * x[i], tanh_derivative), inner_derivative);
    grad_x[i] = multiply(multiply_add(1.0F + tanh[i], 0.5F, right), grad[i]);
  }
}

// erf(x / sqrt(2)) as oneDNN computes it on AVX2, by formula 7.1.26 of Abramowitz and Stegun, and GELU's derivative,
// whose exponential is the same.
struct ErfAndSlope {
  Floats erf, slope;
};

[[gnu::always_inline]] inline ErfAndSlope erf_and_slope(Floats x) {
  const Floats minus = broadcast(-0.0F), half = broadcast(0.5F), one = broadcast(1.0F);
  constexpr float kFactors[] = {-1.453152027F, 1.421413741F, -0.284496736F, 0.254829592F};
  const Floats scaled = multiply(x, broadcast(0x1.6a09e6p-1F));  // 1 / sqrt(2)
  const Floats sign = signs_of(x), magnitude = turned(scaled, sign);
  const Floats t = divide(one, multiply_add(broadcast(0x1.4f740ap-2F), magnitude, one));
  const Floats power = vector_exp_u20<false>(turned(multiply(scaled, scaled), minus));
  Floats sum = broadcast(1.061405429F);
#pragma GCC unroll 4
  for (const float factor : kFactors) sum = multiply_add(sum, t, broadcast(factor));
  const Floats erf = turned(multiply_add(multiply(turned(power, minus), t), sum, one), sign);
  const Floats density = multiply(multiply(scaled, broadcast(0x1.20dd74p-1F)), power);  // 1 / sqrt(pi)
  return {erf, add_product(erf, half, add(density, half))};
}

// x / 2 (1 + erf(x / sqrt(2)))
inline void gelu_erf_forward(const float* x, float* slope, float* y, int64_t count) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats v = load_first(x + i, count - i), half_of_x = multiply(v, broadcast(0.5F));
    const ErfAndSlope parts = erf_and_slope(v);
    store_first(slope + i, parts.slope, count - i);
    store_first(y + i, multiply_add(parts.erf, half_of_x, half_of_x), count - i);
  }
}

void gelu_erf_backward(const GeluBackward& work) {
  for (int64_t i = 0; i < work.count; i += kLanes) {
    const int64_t rest = work.count - i;
    store_first(work.grad_x + i, multiply(load_first(work.kept + i, rest), load_first(work.grad + i, rest)), rest);
  }
}

}  // namespace

}  // namespace duet
