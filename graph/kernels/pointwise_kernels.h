#pragma once

#include <cstdint>

// Ops that compute each element by itself, on floats that lie side by side: for small tensors, of which ATen's
// preparations take longer than the arithmetic. No includes but the above, as in fast_kernels.h.

namespace duet {

// y = f(a, b) for `rows` of `count` elements. Each row has its own part of a and y; b is the same for all.
struct Pointwise {
  const float* a = nullptr;
  const float* b = nullptr;  // null: `number` for each element
  float* y = nullptr;        // may be a
  int64_t rows = 1, count = 0;
  float number = 0;
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

struct PointwiseKernels {
  PointwiseKernel add = nullptr;
  PointwiseKernel subtract = nullptr;
  PointwiseKernel multiply = nullptr;
  PointwiseKernel divide = nullptr;
  PointwiseKernel relu = nullptr;                // of a
  PointwiseKernel threshold_backward = nullptr;  // b where a, the op's input, is greater than `number` or NaN; else 0
  void (*bernoulli)(Bernoulli& work) = nullptr;
};
PointwiseKernels pointwise_kernels_avx512();  // empty: not for this CPU
PointwiseKernels pointwise_kernels_avx2();
PointwiseKernels fast_pointwise_kernels();  // those of ATen's instruction set

}  // namespace duet
