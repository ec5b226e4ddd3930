#include "graph/kernels/gemm_probes.h"
#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <gtest/gtest.h>

// The probes of gemms tell the order of summation that they prove from every other one.

namespace duet {
namespace {

// One element: its terms, factor by factor, and the bias.
struct Sum {
  const std::vector<float>& line;
  float other, before;
  SumShape shape;

  float product(int64_t k) const { return line[k] * other; }
  float add(int64_t k, float sum) const { return std::fma(line[k], other, sum); }
  float start() const { return shape.has_before ? before : 0.0F; }
};
using Way = std::function<float(const Sum&)>;

std::vector<int64_t> in_order(const SumShape& shape) {
  std::vector<int64_t> terms(static_cast<std::size_t>(shape.k));
  std::iota(terms.begin(), terms.end(), int64_t{0});
  return terms;
}

// Blocks of `k_block` terms, of which `add(l, part)` adds each to the part of its block; the first part begins with
// `first`, the sum of all parts with `start`.
template <class Add>
float sum_of_blocks(const Sum& s, int64_t k_block, float start, float first, const Add& add) {
  float sum = start;
  for (int64_t k = 0; k < s.shape.k; k += k_block) {
    float part = k == 0 ? first : 0;
    for (int64_t l = k; l < std::min(s.shape.k, k + k_block); ++l) part = add(l, part);
    sum += part;
  }
  return sum;
}

Way blocks(std::vector<int64_t> terms, int64_t k_block) {
  return [terms = std::move(terms), k_block](const Sum& s) {
    return sum_of_blocks(s, k_block, s.start(), 0, [&](int64_t l, float part) { return s.add(terms[l], part); });
  };
}

bool tells_apart(const SumShape& shape, const Way& way) {
  for (const GemmProbes& probes : gemm_probes(shape)) {
    for (const auto& line : probes.lines) {
      const float expected = expected_sum(probes, line, shape, {.k_block = shape.k_block});
      if (way({line, probes.other, probes.before, shape}) != expected) return true;
    }
  }
  return false;
}

const std::vector<SumShape> kShapes = {{2, 2, false},   {5, 5, true},    {40, 40, false}, {61, 61, true},
                                       {64, 16, false}, {70, 16, true},  {23, 7, false},  {100, 50, false},
                                       {101, 50, true}, {97, 12, false}, {99, 6, true}};

class GemmProbesOf : public ::testing::TestWithParam<SumShape> {};
INSTANTIATE_TEST_SUITE_P(Shapes, GemmProbesOf, ::testing::ValuesIn(kShapes), [](const auto& info) {
  return std::to_string(info.param.k) + "_by_" + std::to_string(info.param.k_block) +
         (info.param.has_before ? "_and_bias" : "");
});

TEST_P(GemmProbesOf, AcceptTheOrderItself) {
  EXPECT_FALSE(tells_apart(GetParam(), blocks(in_order(GetParam()), GetParam().k_block)));
}

TEST_P(GemmProbesOf, RefuseTwoTermsInEachOthersPlace) {
  const SumShape shape = GetParam();
  for (int64_t i = 0; i < shape.k; ++i) {
    for (int64_t j = i + 1; j < shape.k; ++j) {
      const bool same_tree = i % shape.k_block == 0 && j == i + 1;  // a + b is b + a
      const bool same_blocks = shape.k_block == 1;
      if (same_tree || same_blocks) continue;
      std::vector<int64_t> terms = in_order(shape);
      std::swap(terms[i], terms[j]);
      EXPECT_TRUE(tells_apart(shape, blocks(terms, shape.k_block))) << i << " and " << j;
    }
  }
}

TEST_P(GemmProbesOf, RefuseRandomOrders) {
  const SumShape shape = GetParam();
  if (shape.k < 20) return;  // few terms have few orders: the right one would come up
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int64_t> terms = in_order(shape);
    std::shuffle(terms.begin(), terms.end(), random);
    EXPECT_TRUE(tells_apart(shape, blocks(terms, shape.k_block))) << "round " << round;
  }
}

TEST_P(GemmProbesOf, RefuseRandomTrees) {
  const SumShape shape = GetParam();
  if (shape.k < 5) return;
  for (uint32_t seed = 0; seed < 200; ++seed) {
    EXPECT_TRUE(tells_apart(shape,
                            [seed](const Sum& s) {
                              std::mt19937 random(seed);
                              std::vector<float> parts;
                              for (int64_t k = 0; k < s.shape.k; ++k) parts.push_back(s.product(k));
                              if (s.shape.has_before) parts.push_back(s.before);
                              while (parts.size() > 1) {
                                std::swap(parts[random() % parts.size()], parts.back());
                                const float last = parts.back();
                                parts.pop_back();
                                parts[random() % parts.size()] += last;
                              }
                              return parts.front();
                            }))
        << "seed " << seed;
  }
}

TEST_P(GemmProbesOf, RefuseAProductThatIsRoundedFirst) {
  const SumShape shape = GetParam();
  for (int64_t rounded = 1; rounded < shape.k; ++rounded) {
    if (rounded % shape.k_block == 0) continue;  // the first one of a block is rounded anyway
    EXPECT_TRUE(tells_apart(shape, [rounded](const Sum& s) {
      return sum_of_blocks(s, s.shape.k_block, s.start(), 0,
                           [&](int64_t l, float part) { return l == rounded ? part + s.product(l) : s.add(l, part); });
    })) << rounded;
  }
}

TEST_P(GemmProbesOf, RefuseTwoTermsThatAreAddedFirst) {
  const SumShape shape = GetParam();
  for (int64_t i = 1; i + 1 < shape.k; ++i) {
    if (i % shape.k_block == 0 || (i + 1) % shape.k_block == 0) continue;
    EXPECT_TRUE(tells_apart(shape, [i](const Sum& s) {
      return sum_of_blocks(s, s.shape.k_block, s.start(), 0, [&](int64_t l, float part) {
        if (l == i + 1) return part;
        return l == i ? part + s.add(i + 1, s.product(i)) : s.add(l, part);
      });
    })) << i;
  }
}

TEST_P(GemmProbesOf, RefuseOtherBlocks) {
  const SumShape shape = GetParam();
  for (int64_t k_block = 1; k_block <= shape.k; ++k_block) {
    const bool same = k_block == shape.k_block || (shape.k == 2 && !shape.has_before);
    if (same) continue;
    EXPECT_TRUE(tells_apart(shape, blocks(in_order(shape), k_block))) << k_block;
  }
}

TEST_P(GemmProbesOf, RefuseABiasThatTheFirstBlockStartsFromOrThatIsAddedAtTheEnd) {
  const SumShape shape = GetParam();
  if (!shape.has_before) return;
  const auto with_bias = [](float first, float last) {
    return [first, last](const Sum& s) {
      const auto add = [&s](int64_t l, float part) { return s.add(l, part); };
      return sum_of_blocks(s, s.shape.k_block, 0, first * s.before, add) + last * s.before;
    };
  };
  EXPECT_TRUE(tells_apart(shape, with_bias(1, 0)));
  EXPECT_TRUE(shape.k_block >= shape.k || tells_apart(shape, with_bias(0, 1)));
}

TEST_P(GemmProbesOf, RefuseSeveralSumsSideBySide) {
  const SumShape shape = GetParam();
  for (const int64_t lanes : {2, 4, 16}) {
    if (shape.k < 2 * lanes) continue;
    EXPECT_TRUE(tells_apart(shape, [lanes](const Sum& s) {
      std::vector<float> sums(static_cast<std::size_t>(lanes), 0.0F);
      for (int64_t k = 0; k < s.shape.k; ++k) sums[k % lanes] = s.add(k, sums[k % lanes]);
      return std::accumulate(sums.begin(), sums.end(), s.start());
    })) << lanes;
  }
}

TEST(GemmProbes, AreNotThereForWhatTheyCannotTell) {
  EXPECT_TRUE(gemm_probes({5000, 5000, false}).empty());
  EXPECT_TRUE(gemm_probes({50000, 384, false}).empty());
  EXPECT_FALSE(gemm_probes({8192, 384, true}).empty());
}

}  // namespace
}  // namespace duet
