#pragma once

#include <cstdint>

// Ops that compute each element by itself, on floats that lie side by side.

namespace duet {

// y = f(a, b) for `rows` of `count` elements; y may be a or b in the same place.
struct Pointwise {
  const float* a = nullptr;
  const float* b = nullptr;
  float* y = nullptr;
  int64_t rows = 1, count = 0;
  int64_t a_row = 0, b_row = 0, y_row = 0;  // from a row to the next
  int64_t a_step = 1, b_step = 1;           // 0: the first element stands for the whole row
  float number = 0;                         // that f takes besides
};
using PointwiseKernel = void (*)(const Pointwise& work);

// The zeros and ones of bernoulli_(p), as ATen draws them one by one: 53 bits of two words of mt19937 below p * 2^53.
struct Bernoulli {
  uint32_t* state = nullptr;  // kMersenneWords
  int64_t next = 0;           // the word that is drawn next
  int64_t left = 0;           // words until new ones are made
  uint64_t below = 0;
  float* y = nullptr;
  int64_t count = 0;
  float zero = 0, one = 1;
};
constexpr int64_t kMersenneWords = 624;

// A step of AdamW for `count` elements of a parameter.
struct AdamwStep {
  float* param = nullptr;
  float* grad = nullptr;  // divided by `grad_scale` if that is not null
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  int64_t count = 0;
  const float* grad_scale = nullptr;
  float decay = 1;                  // of the parameter
  float weight = 0, weight_sq = 0;  // of the gradient in the averages
  float beta2 = 0;
  // What computes the roots of `count` numbers; null: rounded ones.
  void (*roots)(const float* x, float* y, int64_t count) = nullptr;
  float bias_sqrt = 1, eps = 0, step = 0;  // param += step * exp_avg / (sqrt(exp_avg_sq) / bias_sqrt + eps)
};

// A step of SGD for `count` elements of a parameter.
struct SgdStep {
  float* param = nullptr;
  const float* grad = nullptr;
  float* buffer = nullptr;  // null: without momentum
  int64_t count = 0;
  bool decays = false, nesterov = false;
  float decay = 0, momentum = 0;
  float weight = 1;  // of the gradient in the buffer
  float step = 0;    // param += step * gradient or buffer
};

struct PointwiseKernels {
  PointwiseKernel add = nullptr;  // a + number * b, where the number is 1 or -1: ATen may round the product of others
  PointwiseKernel multiply = nullptr;
  PointwiseKernel divide = nullptr;
  PointwiseKernel threshold_backward = nullptr;  // b where a, the op's input, is greater than `number` or NaN; else 0
  PointwiseKernel sigmoid_backward = nullptr;    // of the gradient a and the op's result b
  // Of a alone.
  PointwiseKernel copy = nullptr;
  PointwiseKernel negate = nullptr;
  PointwiseKernel relu = nullptr;
  PointwiseKernel square = nullptr;
  PointwiseKernel cube = nullptr;
  PointwiseKernel inverse_root = nullptr;
  PointwiseKernel inverse = nullptr;
  // As ATen's vectors compute it. What is left over by them ATen computes with libm, so that nothing may be.
  PointwiseKernel sigmoid = nullptr;
  PointwiseKernel silu = nullptr;
  PointwiseKernel silu_backward = nullptr;  // of the gradient a and the op's input b
  void (*bernoulli)(Bernoulli& work) = nullptr;
  void (*adamw)(const AdamwStep& work) = nullptr;
  void (*sgd)(const SgdStep& work) = nullptr;
};

struct GeluBackward {
  const float* grad;
  const float* x;
  const float* kept;
  float* grad_x;
  int64_t count;
};

// gelu(x) of one approximation and its gradient; what the second takes from the first is handed over in `kept`.
struct GeluKernels {
  void (*forward)(const float* x, float* kept, float* y, int64_t count) = nullptr;
  void (*backward)(const GeluBackward& work) = nullptr;
};

}  // namespace duet
