#pragma once

#include "graph/kernels/pointwise_kernels.h"
#include "graph/kernels/vector_functions.h"

// The loops of pointwise_kernels.h, with the vector operations of *_simd.h, which is included before.

namespace duet {

namespace {

inline Floats load_first(const float* from, int64_t count) {
  return count >= kLanes ? load(from) : load(from, first_lanes(count));
}

// A step of AdamW as ATen's FusedAdamKernel.cpp rounds it, or what torch.optim calls in its place. At the last few
// elements the compiler of the fused one fused the other product of a sum of two, and turned the operands of another
// round: that shows where both are NaN.
template <bool kLast>
class AdamwLanes {
 public:
  [[gnu::always_inline]] explicit AdamwLanes(const AdamwStep& work)
      : work_(work),
        is_small_(work.weight < 0.5F && work.weight > -0.5F),
        weight_(broadcast(is_small_ ? work.weight : work.weight - 1)),
        weight_sq_(broadcast(work.weight_sq)),
        beta2_(broadcast(work.beta2)),
        decay_(broadcast(work.decay)),
        bias_sqrt_(broadcast(work.bias_sqrt)),
        eps_(broadcast(work.eps)),
        factor_(broadcast(work.step)) {}

  struct Averages {
    Floats average, squares;
  };
  [[gnu::always_inline]] Averages average(int64_t i, int64_t count) const {
    Floats grad = load_first(work_.grad + i, count);
    if (work_.grad_scale != nullptr) {
      grad = divide(grad, broadcast(*work_.grad_scale));
      store_first(work_.grad + i, grad, count);
    }
    const Floats old_average = load_first(work_.exp_avg + i, count);
    const Floats average = multiply_add(subtract(grad, old_average), weight_, is_small_ ? old_average : grad);
    store_first(work_.exp_avg + i, average, count);

    const Floats old = load_first(work_.exp_avg_sq + i, count), weighted = multiply(grad, weight_sq_);
    const Floats squares = kLast ? multiply_add(old, beta2_, multiply(weighted, grad))
                                 : multiply_add(weighted, grad, multiply(old, beta2_));
    store_first(work_.exp_avg_sq + i, squares, count);
    return {average, squares};
  }
  [[gnu::always_inline]] void move(int64_t i, int64_t count, Floats average, Floats root) const {
    const Floats param = multiply(load_first(work_.param + i, count), decay_);
    const Floats denominator = add(divide(root, bias_sqrt_), eps_);
    const Floats step = divide(multiply(average, factor_), denominator);
    store_first(work_.param + i, kLast ? add(param, step) : add(step, param), count);
  }

 private:
  AdamwStep work_;
  bool is_small_;
  Floats weight_, weight_sq_, beta2_, decay_, bias_sqrt_, eps_, factor_;
};

template <class Do>
inline void for_each_vector_of(int64_t begin, int64_t end, const Do& work) {
  for (; begin + kLanes <= end; begin += kLanes) work(begin, int64_t{kLanes});
  if (begin < end) work(begin, end - begin);
}

template <bool kLast>
void adamw_lanes(const AdamwStep& work, int64_t begin, int64_t end) {
  const AdamwLanes<kLast> lanes(work);
  for_each_vector_of(begin, end, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    const auto [average, squares] = lanes.average(i, count);
    lanes.move(i, count, average, square_root(squares));
  });
}

// With roots of another library, for so many elements at a time that they stay in the cache.
void adamw_with_roots(const AdamwStep& work) {
  constexpr int64_t kTile = 1024;
  const AdamwLanes<false> lanes(work);
  float roots[kTile];
  for (int64_t begin = 0; begin < work.count; begin += kTile) {
    const int64_t end = begin + kTile < work.count ? begin + kTile : work.count;
    for_each_vector_of(begin, end, [&](int64_t i, int64_t count) { lanes.average(i, count); });
    work.roots(work.exp_avg_sq + begin, roots, end - begin);
    for_each_vector_of(begin, end, [&](int64_t i, int64_t count) {
      lanes.move(i, count, load_first(work.exp_avg + i, count), load_first(roots + i - begin, count));
    });
  }
}

void adamw(const AdamwStep& work) {
  if (work.roots != nullptr) return adamw_with_roots(work);
  constexpr int64_t kTogether = 8;  // elements of what ATen's compiler made of the loop over the last ones
  const int64_t end = work.count / kTogether * kTogether;
  adamw_lanes<false>(work, 0, end);
  adamw_lanes<true>(work, end, work.count);
}

// As ATen's add_, mul_ and add of torch/optim/sgd.py round it.
void sgd(const SgdStep& work) {
  const Floats decay = broadcast(work.decay), momentum = broadcast(work.momentum);
  const Floats weight = broadcast(work.weight), step = broadcast(work.step);
  for_each_vector_of(0, work.count, [&](int64_t i, int64_t count) __attribute__((always_inline)) {
    const Floats param = load_first(work.param + i, count);
    Floats grad = load_first(work.grad + i, count);
    if (work.decays) grad = multiply_add(param, decay, grad);
    if (work.buffer != nullptr) {
      const Floats buffer = multiply_add(grad, weight, multiply(momentum, load_first(work.buffer + i, count)));
      store_first(work.buffer + i, buffer, count);
      grad = work.nesterov ? multiply_add(buffer, momentum, grad) : buffer;
    }
    store_first(work.param + i, multiply_add(grad, step, param), count);
  });
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

// y = function(a, b, number).
template <class Function>
inline void compute(const Pointwise& work, Function function) {
  const Floats number = broadcast(work.number);
  for (int64_t row = 0; row < work.rows; ++row) {
    const float *const a = work.a + row * work.a_row, *const b = work.b + row * work.b_row;
    float* const y = work.y + row * work.y_row;
    const Floats first_a = broadcast(*a), first_b = broadcast(*b);
    const auto one_a = [=](int64_t, int64_t) { return first_a; };
    const auto one_b = [=](int64_t, int64_t) { return first_b; };
    const auto all_a = [=](int64_t i, int64_t count) { return load_first(a + i, count); };
    const auto all_b = [=](int64_t i, int64_t count) { return load_first(b + i, count); };
    const auto compute_row = [&](auto some_a, auto some_b) __attribute__((always_inline)) {
      const int64_t count = work.count;
      int64_t i = 0;
      for (; i + kLanes <= count; i += kLanes) store(y + i, function(some_a(i, kLanes), some_b(i, kLanes), number));
      if (i < count) store_first(y + i, function(some_a(i, count - i), some_b(i, count - i), number), count - i);
    };
    if (work.a_step != 0)
      work.b_step != 0 ? compute_row(all_a, all_b) : compute_row(all_a, one_b);
    else
      work.b_step != 0 ? compute_row(one_a, all_b) : compute_row(one_a, one_b);
  }
}

[[gnu::always_inline]] inline Floats one_and_exp_of_minus(Floats x) {
  return add(broadcast(1), vector_exp(turned(x, broadcast(-0.0F))));
}

template <class Function>
constexpr PointwiseKernel each(Function) {
  return [](const Pointwise& work) { compute(work, Function()); };
}

constexpr PointwiseKernels kPointwiseKernels = {
    // Of two NaN that of b goes first, as in ATen's a + alpha * b.
    .add = each([](Floats a, Floats b, Floats number) { return multiply_add(b, number, a); }),
    .multiply = each([](Floats a, Floats b, Floats) { return multiply(b, a); }),
    .divide = each([](Floats a, Floats b, Floats) { return divide(a, b); }),
    .threshold_backward =
        each([](Floats a, Floats b, Floats number) { return select(greater_or_nan(a, number), b, broadcast(0)); }),
    .sigmoid_backward =
        each([](Floats a, Floats b, Floats) { return multiply(multiply(subtract(broadcast(1), b), a), b); }),
    .copy = each([](Floats a, Floats, Floats) { return a; }),
    .negate = each([](Floats a, Floats, Floats) { return turned(a, broadcast(-0.0F)); }),
    .relu = each([](Floats a, Floats, Floats) { return select(less(a, broadcast(0)), broadcast(0), a); }),
    .square = each([](Floats a, Floats, Floats) { return multiply(a, a); }),
    .cube = each([](Floats a, Floats, Floats) { return multiply(multiply(a, a), a); }),
    .inverse_root = each([](Floats a, Floats, Floats) { return divide(broadcast(1), square_root(a)); }),
    .inverse = each([](Floats a, Floats, Floats) { return divide(broadcast(1), a); }),
    .sigmoid = each([](Floats a, Floats, Floats) { return divide(broadcast(1), one_and_exp_of_minus(a)); }),
    .silu = each([](Floats a, Floats, Floats) { return divide(a, one_and_exp_of_minus(a)); }),
    .silu_backward = each([](Floats a, Floats b, Floats) {
      const Floats one = broadcast(1), sigmoid = divide(one, one_and_exp_of_minus(b));
      return multiply(multiply(sigmoid, a), multiply_add(b, subtract(one, sigmoid), one));
    }),
    .bernoulli = bernoulli,
    .adamw = adamw,
    .sgd = sgd};

}  // namespace

}  // namespace duet
