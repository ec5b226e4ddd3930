#include <limits>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/detail/bits.h"

namespace duet {
namespace {

TEST(TensorCompare, ComparesBitsAndNotValues) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(same_bits(at::full({2}, nan), at::full({2}, nan)));
  EXPECT_FALSE(same_bits(at::full({1}, 0.0F), at::full({1}, -0.0F)));
  EXPECT_FALSE(same_bits(at::ones({2}), at::ones({2}, at::kDouble)));
  EXPECT_FALSE(same_bits(at::ones({2, 3}), at::ones({3, 2})));
  EXPECT_TRUE(same_bits(at::empty({0, 3}), at::empty({0, 3})));
  const at::Tensor grid = at::arange(6).view({2, 3});
  EXPECT_TRUE(same_bits(grid.t(), grid.t().contiguous()));  // strides are no bits
  EXPECT_FALSE(same_bits(grid.t().contiguous(), grid.t().flip(0)));
  const at::Tensor turned = at::complex(at::ones({2}), at::ones({2}));  // lazy views have the values that they show
  EXPECT_FALSE(same_bits(turned, turned.conj()));
  EXPECT_TRUE(same_bits(turned.conj(), turned.conj().resolve_conj()));
  EXPECT_EQ(bits_hash(turned.conj()), bits_hash(turned.conj().resolve_conj()));
}

TEST(TensorCompare, NamesWhatDiffers) {
  using Names = std::vector<std::string>;
  const at::Tensor one = at::ones({2}), two = at::full({2}, 2.0);
  EXPECT_EQ(differences({{"a", one}, {"b", two}}, {{"a", one.clone()}, {"b", two.clone()}}), Names{});
  EXPECT_EQ(differences({{"a", one}, {"b", two}, {"c", one}}, {{"a", one}, {"b", one}, {"c", two}}), (Names{"b", "c"}));
  EXPECT_EQ(differences({{"a", one}, {"b", two}}, {{"a", one}, {"x", two}}), Names{"b"});
  EXPECT_EQ(differences({{"a", one}, {"b", two}}, {{"a", one}}), Names{"b"});
  EXPECT_EQ(differences({{"a", one}}, {{"a", one}, {"c", two}}), Names{"c"});
}

}  // namespace
}  // namespace duet
