#include <dlfcn.h>
#include <immintrin.h>
#include <math.h>
#include "graph/kernels/fast_kernels.h"

// Compiled with AVX-512 instructions: nothing here runs before fast_gelu_kernels() has asked the CPU.
//
// The formulas, with a fused multiply-add exactly where ATen's AVX-512 kernels have one (compiled with
// -ffp-contract=off, so that the compiler adds none). ATen computes in pairs of vectors and takes libm's tanh for what
// is left over; so do these.

namespace duet {

namespace {

constexpr int64_t kLanes = 16;
constexpr float kBeta = 0.7978845608028654F;  // sqrt(2 / pi)
constexpr float kKappa = 0.044715F;

// The tanh that LibTorch's own vectors call: SLEEF, which it carries and exports.
using VectorTanh = __m512 (*)(__m512);
VectorTanh vector_tanh = nullptr;

void forward_pair(const float* x, float* tanh, float* y) {
  for (int64_t i = 0; i < 2 * kLanes; i += kLanes) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __m512 cube = _mm512_mul_ps(_mm512_mul_ps(v, v), v);
    const __m512 inner = _mm512_mul_ps(_mm512_set1_ps(kBeta), _mm512_fmadd_ps(cube, _mm512_set1_ps(kKappa), v));
    const __m512 t = vector_tanh(inner);
    _mm512_storeu_ps(tanh + i, t);
    const __m512 half = _mm512_mul_ps(_mm512_set1_ps(0.5F), _mm512_loadu_ps(x + i));
    _mm512_storeu_ps(y + i, _mm512_mul_ps(half, _mm512_add_ps(_mm512_set1_ps(1.0F), t)));
  }
}

void forward(const float* x, float* tanh, float* y, int64_t count) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) forward_pair(x + i, tanh + i, y + i);
  for (; i < count; ++i) {
    const float cube = x[i] * x[i] * x[i];
    tanh[i] = tanhf(kBeta * __builtin_fmaf(cube, kKappa, x[i]));
    y[i] = 0.5F * x[i] * (1.0F + tanh[i]);
  }
}

void backward_pair(const float* grad, const float* x, const float* tanh, float* grad_x) {
  const __m512 one = _mm512_set1_ps(1.0F);
  const __m512 half = _mm512_set1_ps(0.5F);
  for (int64_t i = 0; i < 2 * kLanes; i += kLanes) {
    const __m512 v = _mm512_loadu_ps(x + i);
    const __m512 t = _mm512_loadu_ps(tanh + i);
    const __m512 square = _mm512_mul_ps(v, v);
    const __m512 inner_derivative =
        _mm512_mul_ps(_mm512_set1_ps(kBeta), _mm512_fmadd_ps(square, _mm512_set1_ps(3.0F * kKappa), one));
    const __m512 tanh_derivative = _mm512_fnmadd_ps(t, t, one);
    const __m512 right = _mm512_mul_ps(_mm512_mul_ps(_mm512_mul_ps(half, v), tanh_derivative), inner_derivative);
    const __m512 derivative = _mm512_fmadd_ps(_mm512_add_ps(one, t), half, right);
    _mm512_storeu_ps(grad_x + i, _mm512_mul_ps(_mm512_loadu_ps(grad + i), derivative));
  }
}

void backward(const float* grad, const float* x, const float* tanh, float* grad_x, int64_t count) {
  int64_t i = 0;
  for (; i + 2 * kLanes <= count; i += 2 * kLanes) backward_pair(grad + i, x + i, tanh + i, grad_x + i);
  for (; i < count; ++i) {
    const float inner_derivative = kBeta * __builtin_fmaf(x[i] * x[i], 3.0F * kKappa, 1.0F);
    const float tanh_derivative = __builtin_fmaf(-tanh[i], tanh[i], 1.0F);
    const float right = 0.5F * x[i] * tanh_derivative * inner_derivative;
    grad_x[i] = grad[i] * __builtin_fmaf(1.0F + tanh[i], 0.5F, right);
  }
}

}  // namespace

GeluKernels fast_gelu_kernels() {
  if (!__builtin_cpu_supports("avx512f")) return {};
  // Once: two threads may ask.
  static const auto found = reinterpret_cast<VectorTanh>(dlsym(RTLD_DEFAULT, "Sleef_tanhf16_u10"));
  static const bool kept = (vector_tanh = found) != nullptr;
  return kept ? GeluKernels{forward, backward} : GeluKernels{};
}

}  // namespace duet
