#include "metrics/probability_metric.h"
#include <cmath>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

// Added in two batches of different size.
template <class M>
double of(M metric, const at::Tensor& prediction, const at::Tensor& target) {
  const int64_t first = prediction.size(0) / 3;
  for (const auto& [from, to] : {std::pair{int64_t{0}, first}, {first, prediction.size(0)}}) {
    metric.add({{"target", target.slice(0, from, to)}}, {{"prediction", prediction.slice(0, from, to)}}, 1);
  }
  const MetricValues values = metric.compute();
  EXPECT_EQ(values.begin()->first, metric.names().front());
  return values.begin()->second;
}

// What it comes to is held against numpy in reference_test.cpp.
TEST(RankingMetric, KeepsNothingOfMemoryThatIsWrittenAgain) {
  Auroc metric;
  const at::Tensor scores = at::tensor({1.0, 0.0}, at::kDouble), target = at::tensor({1, 0}, at::kLong);
  metric.add({{"target", target}}, {{"prediction", scores}}, 1);
  scores.fill_(5);
  target.fill_(0);
  EXPECT_EQ(metric.compute().at("auroc"), 1);
}

TEST(RankingMetric, SaysWhenThereIsNothingToSay) {
  EXPECT_TRUE(Auroc().compute().empty());
  EXPECT_TRUE(std::isnan(of(Auroc(), at::rand({5}), at::ones({5}, at::kLong))));
  EXPECT_TRUE(std::isnan(of(Auroc(), at::full({4}, NAN), at::tensor({0, 1, 0, 1}, at::kLong))));
  Auroc metric({.num_classes = 3});
  const auto add = [&](const at::Tensor& scores, const at::Tensor& target) {
    metric.add({{"target", target}}, {{"prediction", scores}}, 1);
  };
  expect_error<DataError>([&] { add(at::rand({4, 5}), at::zeros({4}, at::kLong)); }, {"5 scores", "num_classes to 5"});
  expect_error<DataError>([&] { add(at::rand({4, 3}), at::full({4}, 3, at::kLong)); }, {"3 to 3", "0 to 2"});
  expect_error<DataError>([&] { add(at::rand({4, 3, 2}), at::zeros({4}, at::kLong)); }, {"[4, 3, 2]", "[N, classes]"});
  expect_error<DataError>([&] { add(at::rand({4, 3}), at::full({4, 3}, 0.5)); }, {"labels", "0.5", "0 to 1"});
  expect_error<DataError>([&] { add(at::rand({4, 3}), at::full({4}, 0.5)); }, {"classes", "0.5", "whole numbers"});
  expect_error<DataError>([&] { add(at::rand({4, 3}), at::zeros({4, 2})); }, {"[4, 2]", "0 and 1 [N, classes]"});
  expect_error<ConfigError>([] { Auroc({.num_classes = 0}); }, {"num_classes"});
}

TEST(CalibrationError, EqualsItsDefinition) {
  // Confidences 0.9, 0.9, 0.6, 0.6: of the first two both right, of the others none.
  const double high = std::log(9.0), low = std::log(1.5);
  const at::Tensor logits = at::tensor({high, high, low, low}, at::kDouble);
  const at::Tensor target = at::tensor({1, 1, 0, 0}, at::kLong);
  EXPECT_NEAR(of(CalibrationError(), logits, target), (0.1 + 0.1 + 0.6 + 0.6) / 4, 1e-12);
  const at::Tensor both = at::stack({at::zeros_like(logits), logits}, 1);
  EXPECT_NEAR(of(CalibrationError({.bins = 1}), both, target), std::abs(3.0 - 2.0) / 4, 1e-12);
  for (const at::Tensor& wrong : {at::tensor({1, 2, 3, 1}, at::kLong), at::full({4}, 0.5)}) {
    expect_error<DataError>([&] { of(CalibrationError(), both, wrong); }, {"class numbers", "expected 0 to 1"});
  }
  EXPECT_TRUE(CalibrationError().compute().empty());
  EXPECT_TRUE(std::isnan(of(CalibrationError(), at::full({3, 2}, NAN), at::zeros({3}, at::kLong))));
}

}  // namespace
}  // namespace duet
