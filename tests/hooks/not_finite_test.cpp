#include "hooks/detail/not_finite.h"
#include <limits>
#include <ATen/Functions.h>
#include <gtest/gtest.h>

namespace duet {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

std::string found_in(const at::Tensor& tensor, bool may_be_infinite = false) {
  return names_of(not_finite({{"weight", "w", tensor, may_be_infinite}}));
}

TEST(NotFinite, FindsOneNumberOfEveryType) {
  for (const at::ScalarType type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble, at::kComplexFloat}) {
    for (const double bad : {kInfinite, -kInfinite, std::nan("")}) {
      at::Tensor tensor = at::ones({3, 1000}).to(type);
      EXPECT_EQ(found_in(tensor), "") << type;
      tensor[2][777] = bad;
      EXPECT_EQ(found_in(tensor), "the weight 'w'") << type << " " << bad;
      EXPECT_EQ(found_in(tensor.t()), "the weight 'w'") << type << " " << bad;
      const bool is_nan = std::isnan(bad);
      EXPECT_EQ(found_in(tensor, /*may_be_infinite=*/true).empty(), !is_nan) << type << " " << bad;
    }
  }
  EXPECT_EQ(found_in(at::full({4}, std::numeric_limits<float>::lowest())), "");
  EXPECT_EQ(found_in(at::tensor({kInfinite, std::nan("")}), /*may_be_infinite=*/true), "the weight 'w'");
  EXPECT_EQ(found_in(at::tensor({1.0, kInfinite}).to(at::kFloat8_e5m2)), "the weight 'w'");
}

TEST(NotFinite, LooksAtTheValuesOfASparseTensorAndPassesOverWhatHasNone) {
  const at::Tensor values = at::ones({2, 3});
  const at::Tensor sparse = at::sparse_coo_tensor(at::tensor({1, 3}, at::kLong).view({1, 2}), values, {5, 3});
  EXPECT_EQ(found_in(sparse), "");
  sparse._values().fill_(kInfinite);
  EXPECT_EQ(found_in(sparse), "the weight 'w'");
  for (const at::Tensor& none : {at::Tensor(), at::empty({0}), at::ones({2}, at::kLong), at::ones({2}, at::kBool)}) {
    EXPECT_EQ(found_in(none), "");
  }
}

}  // namespace
}  // namespace duet
