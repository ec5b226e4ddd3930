#include "metrics/regression_metric.h"
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
}

}  // namespace
}  // namespace duet
