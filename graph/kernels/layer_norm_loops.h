#pragma once

#include "graph/kernels/row_kernels.h"

// Layer norm, with the vector operations of avx2_simd.h, which is included before: ATen has no other vectors for it,
// also where it has AVX-512, and they decide how a row is summed. A multiply-add is fused where LibTorch's compiler
// fused it.

namespace duet {

namespace {

constexpr int kChunk = 16;  // vectors that are counted one by one
constexpr int kRowsAtOnce = 4;
constexpr int kMostDepth = 8;  // of a row of kWidestNorm

struct Moments {
  int64_t count = 0;
  Floats mean[kRowsAtOnce], squares[kRowsAtOnce];  // of what is left without the mean
};

inline void clear(Moments& moments) {
  moments.count = 0;
  for (int r = 0; r < kRowsAtOnce; ++r) moments.mean[r] = moments.squares[r] = broadcast(0);
}

inline void add_moments(Moments& to, const Moments& from) {
  const int64_t count = to.count + from.count;
  const Floats share = broadcast(count == 0 ? 0.0F : static_cast<float>(from.count) / static_cast<float>(count));
  const Floats before = broadcast(static_cast<float>(to.count));
#pragma GCC unroll 4
  for (int r = 0; r < kRowsAtOnce; ++r) {
    const Floats delta = subtract(from.mean[r], to.mean[r]);
    const Floats part = multiply(share, delta);
    to.squares[r] = multiply_add(multiply(delta, before), part, add(to.squares[r], from.squares[r]));
    to.mean[r] = add(to.mean[r], part);
  }
  to.count = count;
}

struct RowPointers {
  const float* row[kLanes];
};

// Welford's algorithm over `count` vectors.
inline void moments_of_chunk(const float* const* rows, int64_t at, int64_t count, Moments& moments) {
  Floats mean[kRowsAtOnce], squares[kRowsAtOnce];
#pragma GCC unroll 4
  for (int r = 0; r < kRowsAtOnce; ++r) mean[r] = squares[r] = broadcast(0);
  for (int64_t i = 0; i < count; ++i) {
    const Floats share = broadcast(1.0F / static_cast<float>(i + 1));
#pragma GCC unroll 4
    for (int r = 0; r < kRowsAtOnce; ++r) {
      const Floats x = load(rows[r] + at + i * kLanes);
      const Floats delta = subtract(x, mean[r]);
      mean[r] = multiply_add(share, delta, mean[r]);
      squares[r] = multiply_add(delta, subtract(x, mean[r]), squares[r]);
    }
  }
  moments.count = count;
#pragma GCC unroll 4
  for (int r = 0; r < kRowsAtOnce; ++r) moments.mean[r] = mean[r], moments.squares[r] = squares[r];
}

// Of the vectors of some rows: chunks are put together in pairs, pairs of those again, and so on.
inline void moments_of_vectors(const float* const* rows, int64_t vectors, Moments& result) {
  const int64_t chunks = (vectors + kChunk - 1) / kChunk;
  const int depth = chunks <= 2 ? 1 : 64 - __builtin_clzll(static_cast<uint64_t>(chunks) - 1);
  Moments level[kMostDepth];
  for (int j = 0; j < depth; ++j) clear(level[j]);
  for (int64_t i = 0; i < chunks; ++i) {
    Moments chunk;
    const int64_t rest = vectors - i * kChunk;
    moments_of_chunk(rows, i * kChunk * kLanes, rest < kChunk ? rest : kChunk, chunk);
    add_moments(level[0], chunk);
    int64_t mask = i + 1;
    for (int j = 1; j < depth && (mask & 1) == 0; ++j, mask >>= 1) {
      add_moments(level[j], level[j - 1]);
      clear(level[j - 1]);
    }
  }
  for (int j = 1; j < depth; ++j) add_moments(level[0], level[j]);
  result = level[0];
}

// The moments of a row in each lane.
struct RowMoments {
  Floats mean = broadcast(0), squares = broadcast(0);
};

// What is left over of the rows' vectors, element by element.
inline void add_rest(const RowPointers& rows, int64_t width, RowMoments& moments) {
  const int64_t rest = width % kLanes;
  if (rest == 0) return;
  Floats columns[kLanes];
  const Mask mask = first_lanes(rest);
  for (int r = 0; r < kLanes; ++r) columns[r] = load(rows.row[r] + width - rest, mask);
  transpose(columns);
  for (int64_t i = 0; i < rest; ++i) {
    const Floats delta = subtract(columns[i], moments.mean);
    moments.mean = add(moments.mean, divide(delta, broadcast(static_cast<float>(i + 1))));
    moments.squares = add(moments.squares, multiply(delta, subtract(columns[i], moments.mean)));
  }
}

inline RowMoments moments_of_rows(const RowPointers& rows, int64_t width) {
  Floats means[kLanes], squares[kLanes];
  const int64_t vectors = width / kLanes;
  for (int first = 0; first < kLanes; first += kRowsAtOnce) {
    Moments moments;
    moments_of_vectors(rows.row + first, vectors, moments);
    for (int r = 0; r < kRowsAtOnce; ++r) {
      means[first + r] = moments.mean[r];
      squares[first + r] = moments.squares[r];
    }
  }
  transpose(means);
  transpose(squares);
  RowMoments sum;
  add_rest(rows, width, sum);
  int64_t count = width % kLanes;
  for (int i = 0; i < kLanes; ++i, count += vectors) {
    const Floats share = broadcast(static_cast<float>(vectors) / static_cast<float>(count + vectors));
    const Floats delta = subtract(means[i], sum.mean);
    sum.mean = multiply_add(share, delta, sum.mean);
    const Floats square = multiply(multiply(delta, delta), share);
    sum.squares = add(sum.squares, multiply_add(square, broadcast(static_cast<float>(count)), squares[i]));
  }
  return sum;
}

inline void normalize_row(const LayerNormForward& work, int64_t row, NanWatch& nan) {
  const int64_t width = work.shape.width;
  const float* x = work.x + row * width;
  float* y = work.y + row * width;
  const Floats mean = broadcast(work.mean[row]), scale = broadcast(work.inverse_std[row]);
  const auto value = [&](Floats value, Floats weight, Floats bias) {
    const Floats result = multiply_add(multiply(subtract(value, mean), scale), weight, bias);
    nan.see(result);
    return result;
  };
  int64_t i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    const Floats bias = work.bias != nullptr ? load(work.bias + i) : broadcast(0);
    store(y + i, value(load(x + i), load(work.weight + i), bias));
  }
  if (i == width) return;
  const Mask mask = first_lanes(width - i);
  const Floats bias = work.bias != nullptr ? load(work.bias + i, mask) : broadcast(0);
  store_first(y + i, value(load(x + i, mask), load(work.weight + i, mask), bias), width - i);
}

bool layer_norm_forward(const LayerNormForward& work) {
  const auto [rows, width] = work.shape;
  const Floats one = broadcast(1);
  NanWatch nan;
  for (int64_t row = 0; row < rows; row += kLanes) {
    const int64_t count = rows - row < kLanes ? rows - row : kLanes;
    RowPointers pointers;
    for (int64_t r = 0; r < kLanes; ++r) pointers.row[r] = work.x + (row + (r < count ? r : count - 1)) * width;
    const RowMoments moments = moments_of_rows(pointers, width);
    const Floats variance = divide(moments.squares, broadcast(static_cast<float>(width)));
    store_first(work.mean + row, moments.mean, count);
    store_first(work.inverse_std + row, divide(one, square_root(add(variance, broadcast(work.epsilon)))), count);
    for (int64_t r = row; r < row + count; ++r) normalize_row(work, r, nan);
  }
  return !nan.any();
}

// Backward.
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
  GradRows(const LayerNormBackward& work, float* sums, int64_t row, NanWatch& nan)
      : work_(work), sums_(sums), first_(row * work.shape.width), nan_(nan) {
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
    float* sums = sums_ + 2 * i;  // the columns of both, vector by vector
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
  float* const sums_;
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

bool layer_norm_backward(const LayerNormBackward& work, int64_t part) {
  const auto [rows, width] = work.shape;
  float* const sums = work.sums + part * norm_sums(width);
  for (int64_t i = 0; i < width; i += kLanes) {
    store(sums + 2 * i, broadcast(0));
    store(sums + 2 * i + kLanes, broadcast(0));
  }
  NanWatch nan;
  const int64_t some = (rows + work.parts - 1) / work.parts, begin = part * some;
  const int64_t end = begin + some < rows ? begin + some : rows;
  int64_t row = begin;
  for (; row + 4 <= end; row += 4) GradRows<4>(work, sums, row, nan).write();
  for (; row < end; ++row) GradRows<1>(work, sums, row, nan).write();
  return !nan.any();
}

bool add_norm_parts(const LayerNormBackward& work) {
  const auto [rows, width] = work.shape;
  NanWatch nan;
  for (int64_t i = 0; i < width; ++i) {
    if (work.grad_weight != nullptr) work.grad_weight[i] = 0;
    if (work.grad_bias != nullptr) work.grad_bias[i] = 0;
  }
  const int64_t some = (rows + work.parts - 1) / work.parts;
  for (int64_t part = 0; part * some < rows; ++part) {
    const float* const sums = work.sums + part * norm_sums(width);
    add_part(work, sums, work.grad_weight, nan);
    add_part(work, sums + kLanes, work.grad_bias, nan);
  }
  return !nan.any();
}

}  // namespace

}  // namespace duet
