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

using Ways = std::vector<std::pair<std::string, Way>>;

// Terms in other orders. Few terms have few orders: the right one would come up among random ones.
void add_orders(const SumShape& shape, Ways& ways) {
  const auto add = [&](const std::string& name, std::vector<int64_t> terms) {
    ways.emplace_back(name, blocks(std::move(terms), shape.k_block));
  };
  for (int64_t i = 0; i < shape.k; ++i) {
    for (int64_t j = i + 1; j < shape.k; ++j) {
      if (shape.k_block == 1 || (i % shape.k_block == 0 && j == i + 1)) continue;  // a + b is b + a
      std::vector<int64_t> terms = in_order(shape);
      std::swap(terms[i], terms[j]);
      add("swapped " + std::to_string(i) + " and " + std::to_string(j), std::move(terms));
    }
  }
  std::mt19937 random(7);
  for (int round = 0; round < 200 && shape.k >= 20; ++round) {
    std::vector<int64_t> terms = in_order(shape);
    std::shuffle(terms.begin(), terms.end(), random);
    add("random order " + std::to_string(round), std::move(terms));
  }
  for (int64_t k_block = 1; k_block <= shape.k; ++k_block) {
    if (k_block == shape.k_block || (shape.k == 2 && !shape.has_before)) continue;
    ways.emplace_back("blocks of " + std::to_string(k_block), blocks(in_order(shape), k_block));
  }
}

float random_tree(const Sum& s, uint32_t seed) {
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
}

// The first term of a block is rounded anyway.
void add_trees(const SumShape& shape, Ways& ways) {
  for (uint32_t seed = 0; seed < 200 && shape.k >= 5; ++seed) {
    ways.emplace_back("tree " + std::to_string(seed), [seed](const Sum& s) { return random_tree(s, seed); });
  }
  for (int64_t i = 1; i < shape.k; ++i) {
    if (i % shape.k_block == 0) continue;
    ways.emplace_back("rounded product " + std::to_string(i), [i](const Sum& s) {
      const auto add = [&](int64_t l, float part) { return l == i ? part + s.product(l) : s.add(l, part); };
      return sum_of_blocks(s, s.shape.k_block, s.start(), 0, add);
    });
    if (i + 1 == shape.k || (i + 1) % shape.k_block == 0) continue;
    ways.emplace_back("two terms first " + std::to_string(i), [i](const Sum& s) {
      const auto add = [&](int64_t l, float part) {
        if (l == i + 1) return part;
        return l == i ? part + s.add(i + 1, s.product(i)) : s.add(l, part);
      };
      return sum_of_blocks(s, s.shape.k_block, s.start(), 0, add);
    });
  }
  for (const int64_t lanes : {2, 4, 16}) {
    if (shape.k < 2 * lanes) continue;
    ways.emplace_back("side by side " + std::to_string(lanes), [lanes](const Sum& s) {
      std::vector<float> sums(static_cast<std::size_t>(lanes), 0.0F);
      for (int64_t k = 0; k < s.shape.k; ++k) sums[k % lanes] = s.add(k, sums[k % lanes]);
      return std::accumulate(sums.begin(), sums.end(), s.start());
    });
  }
}

// That the first block starts from, or that is added at the end.
void add_biases(const SumShape& shape, Ways& ways) {
  const auto with_bias = [](float first, float last) {
    return [first, last](const Sum& s) {
      const auto add = [&s](int64_t l, float part) { return s.add(l, part); };
      return sum_of_blocks(s, s.shape.k_block, 0, first * s.before, add) + last * s.before;
    };
  };
  if (shape.has_before) ways.emplace_back("bias first", with_bias(1, 0));
  if (shape.has_before && shape.k_block < shape.k) ways.emplace_back("bias last", with_bias(0, 1));
}

TEST_P(GemmProbesOf, RefuseEveryOtherWay) {
  Ways ways;
  for (const auto add : {add_orders, add_trees, add_biases}) add(GetParam(), ways);
  for (const auto& [name, way] : ways) EXPECT_TRUE(tells_apart(GetParam(), way)) << name;
}

TEST(GemmProbes, AreNotThereForWhatTheyCannotTell) {
  EXPECT_TRUE(gemm_probes({5000, 5000, false}).empty());
  EXPECT_TRUE(gemm_probes({50000, 384, false}).empty());
  EXPECT_FALSE(gemm_probes({8192, 384, true}).empty());
}

}  // namespace
}  // namespace duet
