#pragma once

#include "graph/kernels/row_kernels.h"

// The sum of each column, with the vector operations of avx2_simd.h, which is included before: ATen has no other
// vectors for it, also where it has AVX-512, and they decide which columns are summed in which order.
//
// ATen sums in a cascade: a chain of 2^power terms is added to a second one, 2^power of those to a third, and so on.

namespace duet {

namespace {

constexpr int kLevels = 4;

inline int level_power(int64_t count) {
  const int log2 = count <= 2 ? 1 : 64 - __builtin_clzll(static_cast<uint64_t>(count) - 1);
  return log2 / kLevels > 4 ? log2 / kLevels : 4;
}

// Terms that lie `step` apart, in kChains chains that begin `apart` from each other.
struct Chains {
  const float* x;
  int64_t step, apart, count;
  Mask mask;
};

template <bool kMasked>
Floats load_term(const float* from, Mask mask) {
  if constexpr (kMasked) return load(from, mask);
  return load(from);
}

template <int kChains, bool kMasked>
void sum_chains(const Chains& chains, Floats* sums) {
  const int power = level_power(chains.count);
  Floats level[kLevels][kChains];
  for (auto& row : level) {
    for (Floats& sum : row) sum = broadcast(0);
  }
  const auto add_terms = [&](int64_t begin, int64_t end) {
    Floats chain[kChains];
#pragma GCC unroll 4
    for (int k = 0; k < kChains; ++k) chain[k] = level[0][k];
    for (int64_t i = begin; i < end; ++i) {
      const float* at = chains.x + i * chains.step;
#pragma GCC unroll 4
      for (int k = 0; k < kChains; ++k)
        chain[k] = add(chain[k], load_term<kMasked>(at + k * chains.apart, chains.mask));
    }
#pragma GCC unroll 4
    for (int k = 0; k < kChains; ++k) level[0][k] = chain[k];
  };
  const int64_t length = int64_t{1} << power;
  int64_t i = 0;
  for (; i + length <= chains.count;) {
    add_terms(i, i + length);
    i += length;
    for (int j = 1; j < kLevels; ++j) {
      for (int k = 0; k < kChains; ++k) {
        level[j][k] = add(level[j][k], level[j - 1][k]);
        level[j - 1][k] = broadcast(0);
      }
      if ((i & ((length - 1) << (j * power))) != 0) break;
    }
  }
  add_terms(i, chains.count);
  for (int k = 0; k < kChains; ++k) {
    sums[k] = level[0][k];
    for (int j = 1; j < kLevels; ++j) sums[k] = add(sums[k], level[j][k]);
  }
}

// Up to kLanes columns, whose rows are summed in four chains.
template <bool kMasked>
Floats sum_in_four_chains(const ColumnSum& work, int64_t column, Mask mask) {
  const int64_t width = work.shape.width, in_chains = work.shape.rows / 4;
  Floats sums[4];
  sum_chains<4, kMasked>({work.x + column, 4 * width, width, in_chains, mask}, sums);
  for (int64_t row = 4 * in_chains; row < work.shape.rows; ++row) {
    sums[0] = add(sums[0], load_term<kMasked>(work.x + row * width + column, mask));
  }
  for (int k = 1; k < 4; ++k) sums[0] = add(sums[0], sums[k]);
  return sums[0];
}

bool column_sum(const ColumnSum& work, const IndexRange& blocks) {
  static_assert(kColumnBlock == 4 * kLanes);
  const int64_t rows = work.shape.rows, last = blocks.end * kColumnBlock;
  const int64_t width = last < work.shape.width ? last : work.shape.width;
  NanWatch nan;
  const auto keep = [&](int64_t column, Floats sum, int64_t count) {
    sum = add(broadcast(0), sum);  // what ATen adds it to
    nan.see(sum);
    store_first(work.y + column, sum, count);
  };
  int64_t column = blocks.begin * kColumnBlock;
  for (; column + 4 * kLanes <= width; column += 4 * kLanes) {
    Floats sums[4];
    sum_chains<4, false>({work.x + column, work.shape.width, kLanes, rows, Mask()}, sums);
    for (int k = 0; k < 4; ++k) keep(column + k * kLanes, sums[k], kLanes);
  }
  for (; column + kLanes <= width; column += kLanes) {
    keep(column, sum_in_four_chains<false>(work, column, Mask()), kLanes);
  }
  if (width < kLanes && width >= 4) {
    Floats sums[1];
    sum_chains<1, true>({work.x, width, 0, rows, first_lanes(4)}, sums);
    keep(0, sums[0], 4);
    column = 4;
  }
  if (column < width) {
    keep(column, sum_in_four_chains<true>(work, column, first_lanes(width - column)), width - column);
  }
  return !nan.any();
}

}  // namespace

}  // namespace duet
