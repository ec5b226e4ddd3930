#pragma once

#include "graph/kernels/pointwise_kernels.h"

// A step of AdamW as ATen's FusedAdamKernel.cpp rounds it, with the vector operations of *_simd.h, which is included
// before. Its time is that of the divisions and the root, so the division by one number for all elements is done with
// multiply-adds.

namespace duet {

namespace {

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

}  // namespace

}  // namespace duet
