#pragma once

#include <math.h>
#include "graph/kernels/vector_functions.h"

// GELU, over the vectors of avx2_simd.h or avx512_simd.h: the formulas, with a fused multiply-add exactly where ATen's
// kernels for these instructions have one (compiled with -ffp-contract=off, so that the compiler adds none). ATen
// computes in pairs of vectors and takes libm's tanh for what is left over; so do these.

namespace duet {

namespace {

constexpr float kBeta = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kKappa = 0.044715F;

void gelu_pair(const float* x, float* tanh, float* y) {
  for (int64_t i = 0; i < 2 * kLanes; i += kLanes) {
    const Floats v = load(x + i);
    const Floats cube = multiply(multiply(v, v), v);
    const Floats t = vector_tanh(multiply(broadcast(kBeta), multiply_add(cube, broadcast(kKappa), v)));
    store(tanh + i, t);
    const Floats half = multiply(broadcast(0.5F), load(x + i));
    store(y + i, multiply(half, add(broadcast(1.0F), t)));
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

void gelu_backward(const float* grad, const float* x, const float* tanh, float* grad_x, int64_t count) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) gelu_backward_pair(grad + i, x + i, tanh + i, grad_x + i);
  for (; i < count; ++i) {
    const float inner_derivative = kBeta * __builtin_fmaf(x[i] * x[i], 3.0F * kKappa, 1.0F);
    const float tanh_derivative = __builtin_fmaf(-tanh[i], tanh[i], 1.0F);
    const float right = multiply(multiply(0.5F * x[i], tanh_derivative), inner_derivative);
    grad_x[i] = multiply(multiply_add(1.0F + tanh[i], 0.5F, right), grad[i]);
  }
}

}  // namespace

}  // namespace duet
