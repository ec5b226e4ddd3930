#include "metrics/regression_metric.h"
#include <algorithm>
#include <cmath>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

template <class M>
double of_batches(const std::vector<std::pair<at::Tensor, at::Tensor>>& batches) {
  M metric;
  for (const auto& [prediction, target] : batches) metric.add({{"target", target}}, {{"prediction", prediction}}, 1);
  const MetricValues values = metric.compute();
  EXPECT_EQ(values.size(), 1U);
  EXPECT_EQ(values.begin()->first, metric.names().front());
  return values.begin()->second;
}

TEST(RegressionMetric, EqualsTheClosedFormsOverUnevenBatches) {
  // Errors 1, -1, 2, 0; targets 1, 3, 5, 7 with the mean 4.
  const std::vector<std::pair<at::Tensor, at::Tensor>> batches = {
      {at::tensor({2.0F, 2.0F, 7.0F}).view({3, 1}), at::tensor({1.0F, 3.0F, 5.0F})},
      {at::tensor({7.0F}), at::tensor({7.0F})}};
  EXPECT_DOUBLE_EQ(of_batches<MeanSquaredError>(batches), 6.0 / 4);
  EXPECT_DOUBLE_EQ(of_batches<MeanAbsoluteError>(batches), 4.0 / 4);
  EXPECT_DOUBLE_EQ(of_batches<R2Score>(batches), 1 - 6.0 / 20);
}

// scikit-learn's r2_score: of each output in float64, in two passes, then the mean.
double r2_of(const at::Tensor& prediction, const at::Tensor& target) {
  const at::Tensor wanted = target.to(at::kDouble), distance = wanted - wanted.mean(0, /*keepdim=*/true);
  const at::Tensor errors = prediction.to(at::kDouble) - wanted;
  return (1 - (errors * errors).sum(0) / (distance * distance).sum(0)).mean().item<double>();
}

std::vector<std::pair<at::Tensor, at::Tensor>> in_batches(const at::Tensor& prediction, const at::Tensor& target) {
  std::vector<std::pair<at::Tensor, at::Tensor>> batches;
  for (int64_t from = 0; from < target.size(0); from += 7) {
    const int64_t to = std::min(from + 7, target.size(0));
    batches.emplace_back(prediction.slice(0, from, to), target.slice(0, from, to));
  }
  return batches;
}

// Targets of other places and scales: around one mean for all, noise would explain nearly everything.
TEST(R2Score, IsTheMeanOverItsOutputs) {
  at::manual_seed(6);
  const at::Tensor target =
      at::randn({50, 3}, at::kDouble) * at::tensor({1.0, 5.0, 0.1}) + at::tensor({0.0, 50.0, -9.0});
  const at::Tensor noise = at::randn({50, 3}, at::kDouble) + at::tensor({0.0, 50.0, -9.0});
  EXPECT_LT(of_batches<R2Score>(in_batches(noise, target)), 0);
  EXPECT_NEAR(of_batches<R2Score>(in_batches(noise, target)), r2_of(noise, target), 1e-10);
  const at::Tensor near = target + at::randn({50, 3}, at::kDouble) / 10;
  EXPECT_NEAR(of_batches<R2Score>(in_batches(near, target)), r2_of(near, target), 1e-10);
}

TEST(R2Score, KeepsItsDigitsFarFromZero) {
  at::manual_seed(7);
  const at::Tensor target = at::randn({200, 2}, at::kDouble) + 1e6;
  const at::Tensor prediction = target + at::randn({200, 2}, at::kDouble) / 2;
  const double wanted = r2_of(prediction, target);
  EXPECT_NEAR(of_batches<R2Score>(in_batches(prediction, target)), wanted, 1e-9 * wanted);
}

TEST(R2Score, LeavesOutputsThatAreAllAlikeOut) {
  at::manual_seed(8);
  const at::Tensor target = at::randn({20, 1}), prediction = target + at::randn({20, 1});
  const at::Tensor flat = at::full({20, 1}, 0.1F);
  EXPECT_NEAR(of_batches<R2Score>(in_batches(at::cat({prediction, flat}, 1), at::cat({target, flat}, 1))),
              r2_of(prediction, target), 1e-10);
  const at::Tensor broken = at::cat({target, at::full({20, 1}, NAN)}, 1);
  EXPECT_TRUE(std::isnan(of_batches<R2Score>(in_batches(broken, broken))));
}

TEST(RegressionMetric, HasNothingToSayOfNothing) {
  EXPECT_TRUE(R2Score().compute().empty());
  EXPECT_TRUE(std::isnan(of_batches<R2Score>({{at::ones({3}), at::ones({3})}})));
  MeanSquaredError metric;
  EXPECT_EQ(metric.sums(at::kCPU).front().sum().item<double>(), 0);
}

TEST(RegressionMetric, NamesShapesThatDoNotFit) {
  MeanSquaredError metric;
  expect_error<DataError>([&] { metric.add({{"target", at::ones({3})}}, {{"prediction", at::ones({3, 2})}}, 1); },
                          {"[3, 2]", "[3]", "num_classes"});
  expect_error<DataError>([&] { metric.add({{"target", at::ones({2, 3})}}, {{"prediction", at::ones({3, 2})}}, 1); },
                          {"[3, 2]", "[2, 3]", "for each sample"});
  R2Score r2;
  r2.add({{"target", at::ones({3, 2})}}, {{"prediction", at::ones({3, 2})}}, 1);
  expect_error<DataError>([&] { r2.add({{"target", at::ones({3})}}, {{"prediction", at::ones({3})}}, 1); },
                          {"1 numbers per sample", "2 in batches before"});
}

}  // namespace
}  // namespace duet
