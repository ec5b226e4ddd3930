#pragma once

#include "graph/kernels/row_kernels.h"

// Layer norm, backward, as layer_norm_loops.h.

namespace duet {

namespace {

struct RowGradTerms {
  Floats scale, slope, shift;
  Floats minus_mean;  // scaled
};

inline RowGradTerms terms_of_row(const LayerNormBackward& work, int64_t row, float product, float grad) {
  const float mean = work.mean[row], scale = work.inverse_std[row];
  const float share = 1.0F / static_cast<float>(work.shape.width);
  const float rest = __builtin_fmaf(grad, mean, -product);
  const float slope = rest * scale * scale * scale * share;
  const float shift = __builtin_fmaf(-slope, mean, -(grad * scale * share));
  return {broadcast(scale), broadcast(slope), broadcast(shift), broadcast(-scale * mean)};
}

// kRows rows from `row` on, vector by vector.
template <int kRows>
class GradRows {
 public:
  GradRows(const LayerNormBackward& work, int64_t row, NanWatch& nan)
      : work_(work), first_(row * work.shape.width), nan_(nan) {
    sum_rows();
    for (int r = 0; r < kRows; ++r) {
      terms_[r] = terms_of_row(work, row + r, sum_of_lanes(products_[r]), sum_of_lanes(grads_[r]));
    }
  }

  void write() {
    const int64_t width = work_.shape.width;
    int64_t i = 0;
    for (; i + kLanes <= width; i += kLanes) write_columns<false>(i, kLanes);
    if (i < width) write_columns<true>(i, width - i);
  }

 private:
  const float* grad(int r) const { return work_.grad + first_ + r * work_.shape.width; }
  const float* x(int r) const { return work_.x + first_ + r * work_.shape.width; }

  // grad * x * weight and grad * weight. LibTorch's compiler fused the last products of a row and no others.
  void sum_rows() {
    const int64_t width = work_.shape.width;
    for (int r = 0; r < kRows; ++r) {
      grads_[r] = multiply(load(grad(r)), load(work_.weight));
      products_[r] = multiply(multiply(load(grad(r)), load(x(r))), load(work_.weight));
    }
    int64_t i = kLanes;
    for (; i + kLanes <= width; i += kLanes) {
      const Floats weight = load(work_.weight + i);
#pragma GCC unroll 4
      for (int r = 0; r < kRows; ++r) {
        const Floats g = load(grad(r) + i);
        products_[r] = add(products_[r], multiply(multiply(g, load(x(r) + i)), weight));
        grads_[r] = add(grads_[r], multiply(g, weight));
      }
    }
    if (i == width) return;
    const Mask mask = first_lanes(width - i);
    const Floats weight = load(work_.weight + i, mask);
    for (int r = 0; r < kRows; ++r) {
      const Floats g = load(grad(r) + i, mask);
      const Floats product = multiply_add(multiply(g, load(x(r) + i, mask)), weight, products_[r]);
      products_[r] = select(mask, product, products_[r]);
      grads_[r] = select(mask, multiply_add(g, weight, grads_[r]), grads_[r]);
    }
  }

  template <bool kMasked>
  void write_columns(int64_t i, int64_t count) {
    const Mask mask = first_lanes(count);
    const auto columns = [mask](const float* from) { return kMasked ? load(from, mask) : load(from); };
    float* sums = work_.sums + 2 * i;  // the columns of both, vector by vector
    const Floats weight = columns(work_.weight + i);
    Floats grad_weight = load(sums), grad_bias = load(sums + kLanes);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const RowGradTerms& t = terms_[r];
      const Floats g = columns(grad(r) + i), v = columns(x(r) + i);
      grad_weight = multiply_add(g, multiply_add(t.scale, v, t.minus_mean), grad_weight);
      grad_bias = add(grad_bias, g);
      if (work_.grad_x == nullptr) continue;
      const Floats grad_x = add(multiply_add(t.slope, v, multiply(multiply(t.scale, g), weight)), t.shift);
      nan_.see(kMasked ? select(mask, grad_x, broadcast(0)) : grad_x);
      store_first(work_.grad_x + first_ + r * work_.shape.width + i, grad_x, count);
    }
    store(sums, grad_weight);
    store(sums + kLanes, grad_bias);
  }

  const LayerNormBackward& work_;
  const int64_t first_;
  NanWatch& nan_;
  Floats products_[kRows], grads_[kRows];
  RowGradTerms terms_[kRows];
};

// to += the part's sum of each column, of which `sums` holds every second vector.
inline void add_part(const LayerNormBackward& work, const float* sums, float* to, NanWatch& nan) {
  for (int64_t i = 0; to != nullptr && i < work.shape.width; i += kLanes) {
    const int64_t count = work.shape.width - i;
    const Mask mask = first_lanes(count);
    const Floats sum = add(load(to + i, mask), load(sums + 2 * i, mask));
    nan.see(sum);
    store_first(to + i, sum, count);
  }
}

bool layer_norm_backward(const LayerNormBackward& work) {
  const auto [rows, width] = work.shape;
  NanWatch nan;
  for (int64_t i = 0; i < width; ++i) {
    if (work.grad_weight != nullptr) work.grad_weight[i] = 0;
    if (work.grad_bias != nullptr) work.grad_bias[i] = 0;
  }
  const int64_t some = (rows + work.parts - 1) / work.parts;
  for (int64_t begin = 0; begin < rows; begin += some) {
    for (int64_t i = 0; i < width; i += kLanes) {
      store(work.sums + 2 * i, broadcast(0));
      store(work.sums + 2 * i + kLanes, broadcast(0));
    }
    const int64_t end = begin + some < rows ? begin + some : rows;
    int64_t row = begin;
    for (; row + 4 <= end; row += 4) GradRows<4>(work, row, nan).write();
    for (; row < end; ++row) GradRows<1>(work, row, nan).write();
    add_part(work, work.sums, work.grad_weight, nan);
    add_part(work, work.sums + kLanes, work.grad_bias, nan);
  }
  return !nan.any();
}

}  // namespace

}  // namespace duet
