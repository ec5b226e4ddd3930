#pragma once

#include <cstring>
#include "graph/kernels/pointwise_kernels.h"

// The loops of pointwise_kernels.h, with the vector operations of *_simd.h, which is included before.

namespace duet {

namespace {

// A step of AdamW as ATen's FusedAdamKernel.cpp rounds it. Its time is that of the divisions and the root, so the
// division by one number for all elements is done with multiply-adds:
// x / by for x >= 0. Two steps of correction with by's correctly rounded reciprocal: the first gives a neighbour of the
// quotient, the second the rounded one (Markstein's theorem). What is left over is exact while nothing underflows,
// which the roots of floats divided by numbers from kLeast to 1 cannot.
class Quotient {
 public:
  explicit Quotient(float by)
      : by_(broadcast(by)), reciprocal_(broadcast(1 / by)), multiplies_(by >= kLeast && by <= 1) {}

  Floats operator()(Floats x) const {
    if (!multiplies_) return divide(x, by_);
    const Floats first = multiply(x, reciprocal_);  // an infinity or NaN already
    Floats quotient = multiply_add(subtract_product(first, by_, x), reciprocal_, first);
    quotient = multiply_add(subtract_product(quotient, by_, x), reciprocal_, quotient);
    return select(less(x, broadcast(__builtin_inff())), quotient, first);
  }

 private:
  static constexpr float kLeast = 1.0F / 1024;
  Floats by_, reciprocal_;
  bool multiplies_;
};

inline Floats load_first(const float* from, int64_t count) {
  return count >= kLanes ? load(from) : load(from, first_lanes(count));
}

// At the last few elements ATen's compiler fused the other product of a sum of two, and turned the operands of another
// round: that shows where both are NaN.
template <bool kLast>
inline void adamw_lanes(const AdamwStep& work, const Quotient& without_bias, int64_t i, int64_t count) {
  Floats grad = load_first(work.grad + i, count);
  if (work.grad_scale != nullptr) {
    grad = divide(grad, broadcast(*work.grad_scale));
    store_first(work.grad + i, grad, count);
  }
  const Floats param = multiply(load_first(work.param + i, count), broadcast(work.decay));
  Floats average = load_first(work.exp_avg + i, count);
  const bool is_small = work.weight < 0.5F && work.weight > -0.5F;
  const Floats weight = broadcast(is_small ? work.weight : work.weight - 1);
  average = multiply_add(subtract(grad, average), weight, is_small ? average : grad);
  store_first(work.exp_avg + i, average, count);

  const Floats old = load_first(work.exp_avg_sq + i, count), beta2 = broadcast(work.beta2);
  const Floats weighted = multiply(grad, broadcast(work.weight_sq));
  const Floats squares =
      kLast ? multiply_add(old, beta2, multiply(weighted, grad)) : multiply_add(weighted, grad, multiply(old, beta2));
  store_first(work.exp_avg_sq + i, squares, count);

  const Floats denominator = add(without_bias(square_root(squares)), broadcast(work.eps));
  const Floats step = divide(multiply(average, broadcast(work.step)), denominator);
  store_first(work.param + i, kLast ? add(param, step) : add(step, param), count);
}

void adamw(const AdamwStep& work) {
  constexpr int64_t kTogether = 8;  // elements of what ATen's compiler made of the loop over the last ones
  const Quotient without_bias(work.bias_sqrt);
  const int64_t end = work.count / kTogether * kTogether;
  int64_t i = 0;
  for (; i + kLanes <= end; i += kLanes) adamw_lanes<false>(work, without_bias, i, kLanes);
  if (i < end) adamw_lanes<false>(work, without_bias, i, end - i);
  if (end < work.count) adamw_lanes<true>(work, without_bias, end, work.count - end);
}

// mt19937 as ATen has it (ATen/core/MT19937RNGEngine.h), whole blocks of words at a time, in loops that compilers turn
// into vectors.
inline uint32_t twisted(uint32_t word, uint32_t next) {
  constexpr uint32_t kUpper = 0x80000000, kLower = 0x7fffffff, kMatrix = 0x9908b0df;
  return (((word & kUpper) | (next & kLower)) >> 1) ^ ((0U - (next & 1U)) & kMatrix);
}

void make_words(uint32_t* state) {
  constexpr int64_t kShift = 397, kRest = kMersenneWords - kShift;
  for (int64_t i = 0; i < kRest; ++i) state[i] = state[i + kShift] ^ twisted(state[i], state[i + 1]);
  for (int64_t i = kRest; i < kMersenneWords - 1; ++i) state[i] = state[i - kRest] ^ twisted(state[i], state[i + 1]);
  state[kMersenneWords - 1] = state[kShift - 1] ^ twisted(state[kMersenneWords - 1], state[0]);
}

inline uint32_t tempered(uint32_t y) {
  y ^= y >> 11;
  y ^= (y << 7) & 0x9d2c5680;
  y ^= (y << 15) & 0xefc60000;
  return y ^ (y >> 18);
}

inline float drawn(const Bernoulli& work, uint32_t first, uint32_t second) {
  constexpr uint32_t kUpperBits = (1U << 21) - 1;
  const uint64_t bits = static_cast<uint64_t>(first & kUpperBits) << 32 | second;
  return bits < work.below ? work.one : work.zero;
}

inline uint32_t next_word(Bernoulli& work) {
  if (work.left == 0) {
    make_words(work.state);
    work.next = 0;
    work.left = kMersenneWords;
  }
  --work.left;
  return tempered(work.state[work.next++]);
}

// All of the block's words that come in pairs.
void draw_pairs(Bernoulli& work) {
  const int64_t pairs = work.left / 2 < work.count ? work.left / 2 : work.count;
  uint32_t words[kMersenneWords];
  for (int64_t i = 0; i < 2 * pairs; ++i) words[i] = tempered(work.state[work.next + i]);
  const Bernoulli from = work;
  for (int64_t i = 0; i < pairs; ++i) from.y[i] = drawn(from, words[2 * i], words[2 * i + 1]);
  work.next += 2 * pairs;
  work.left -= 2 * pairs;
  work.y += pairs;
  work.count -= pairs;
}

void bernoulli(Bernoulli& work) {
  draw_pairs(work);
  while (work.count > 0) {
    const uint32_t first = next_word(work);  // whose second word may lie in another block
    *work.y++ = drawn(work, first, next_word(work));
    --work.count;
    draw_pairs(work);
  }
}

// Some elements of a row: all lanes, or the last ones.
template <class Function>
inline void compute_row(const Pointwise& work, int64_t row, Function function) {
  const float* a = work.a + row * work.count;
  float* y = work.y + row * work.count;
  const Floats number = broadcast(work.number);
  int64_t i = 0;
  for (; i + kLanes <= work.count; i += kLanes) {
    store(y + i, function(load(a + i), work.b != nullptr ? load(work.b + i) : number));
  }
  if (i == work.count) return;
  const Mask rest = first_lanes(work.count - i);
  const Floats values = function(load(a + i, rest), work.b != nullptr ? load(work.b + i, rest) : number);
  store_first(y + i, values, work.count - i);
}

template <class Function>
inline void compute(const Pointwise& work, Function function) {
  for (int64_t row = 0; row < work.rows; ++row) compute_row(work, row, function);
}

// Of two NaN that of b goes first, as in ATen's a + alpha * b.
void pointwise_add(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return add(b, a); });
}
void pointwise_subtract(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return multiply_add(b, broadcast(-1), a); });
}
void pointwise_multiply(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return multiply(b, a); });
}
void pointwise_divide(const Pointwise& work) {
  compute(work, [](Floats a, Floats b) { return divide(a, b); });
}
void pointwise_relu(const Pointwise& work) {
  compute(work, [](Floats a, Floats) { return select(less(a, broadcast(0)), broadcast(0), a); });
}
void pointwise_threshold_backward(const Pointwise& work) {
  const Floats threshold = broadcast(work.number);
  compute(work, [=](Floats a, Floats b) { return select(greater_or_nan(a, threshold), b, broadcast(0)); });
}

constexpr PointwiseKernels kPointwiseKernels = {
    pointwise_add,  pointwise_subtract,           pointwise_multiply, pointwise_divide,
    pointwise_relu, pointwise_threshold_backward, bernoulli,          adamw};

}  // namespace

}  // namespace duet
