#include <duet/core/metric.h>

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <duet/core/error.h>
#include <gtest/gtest.h>

#include "../support/expect_error.h"

namespace duet {
namespace {

TEST(MeanLoss, IsWeighted) {
  MeanLoss metric;
  EXPECT_TRUE(metric.compute().empty());
  metric.add({}, {{"loss", at::scalar_tensor(2.0)}}, 3);
  metric.add({}, {{"other", at::ones({2})}, {"loss", at::scalar_tensor(6.0)}}, 1);
  EXPECT_DOUBLE_EQ(metric.compute().at("loss"), 3.0);
  metric.reset();
  EXPECT_TRUE(metric.compute().empty());
  metric.add({}, {{"loss", at::scalar_tensor(5.0, at::kBFloat16)}}, 0.5);
  EXPECT_DOUBLE_EQ(metric.compute().at("loss"), 5.0);
}

TEST(MeanLoss, EqualsTheMeanOverAllSamplesOfUnevenBatches) {
  const at::Tensor losses = at::rand({10}, at::kDouble);
  MeanLoss metric;
  for (const auto& [from, to] : {std::pair{0, 4}, {4, 8}, {8, 10}}) {
    metric.add({}, {{"loss", losses.slice(0, from, to).mean()}}, to - from);
  }
  EXPECT_NEAR(metric.compute().at("loss"), losses.mean().item<double>(), 1e-15);
}

TEST(MeanLoss, LeavesOutABatchWithoutWeight) {
  MeanLoss metric;
  metric.add({}, {{"loss", at::scalar_tensor(NAN)}}, 0);
  EXPECT_TRUE(metric.compute().empty());
  metric.add({}, {{"loss", at::scalar_tensor(1.0)}}, 2);
  EXPECT_DOUBLE_EQ(metric.compute().at("loss"), 1.0);
}

TEST(MeanLoss, HoldsNoGraphAndCrossesInferenceMode) {
  MeanLoss metric;
  {
    const c10::InferenceMode inference;
    metric.add({}, {{"loss", at::scalar_tensor(1.0)}}, 1);
  }
  metric.add({}, {{"loss", at::scalar_tensor(3.0).requires_grad_()}}, 1);
  EXPECT_DOUBLE_EQ(metric.compute().at("loss"), 2.0);
}

TEST(MeanLoss, RefusesWhatIsNoMean) {
  MeanLoss metric;
  expect_error<DataError>([&] { metric.add({}, {{"prediction", at::ones({2})}}, 1); }, {"[MeanLoss]", "prediction"});
  expect_error<DataError>([&] { metric.add({}, {{"loss", at::ones({2})}}, 1); }, {"[2]"});
  expect_error<DataError>([&] { metric.add({}, {{"loss", at::scalar_tensor(1, at::kLong)}}, 1); }, {"Long"});
  expect_error<DataError>([&] { metric.add({}, {{"loss", at::scalar_tensor(1.0)}}, -1); }, {"weight -1"});
  EXPECT_TRUE(metric.compute().empty());
}

TEST(Accuracy, IsTheShareOfRightSamples) {
  Accuracy metric;
  EXPECT_TRUE(metric.compute().empty());
  const at::Tensor scores = at::tensor({0.F, 1.F, 5.F, 2.F, 0.F, 1.F}).view({3, 2});  // classes 1, 0, 1
  metric.add({{"target", at::tensor({1, 0, 0}, at::kLong)}}, {{"prediction", scores}}, 3);
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 2.0 / 3);
  metric.add({{"target", at::tensor({1}, at::kInt)}}, {{"prediction", scores.slice(0, 0, 1)}}, 1);
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 3.0 / 4);
  metric.reset();
  EXPECT_TRUE(metric.compute().empty());
}

TEST(Accuracy, CountsEveryPositionOfASequenceOrImage) {
  Accuracy metric("label", "logits");
  const at::Tensor label = at::randint(5, {2, 3, 4}, at::kLong);
  at::Tensor logits = at::zeros({2, 5, 3, 4}).scatter(1, label.unsqueeze(1), 1.0);
  metric.add({{"label", label}}, {{"logits", logits}}, 2);
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 1.0);
  metric.add({{"label", label.add(1).remainder(5)}}, {{"logits", logits}}, 2);
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 0.5);
}

TEST(Accuracy, RefusesShapesAndTypesThatDoNotMatch) {
  Accuracy metric;
  const auto expect = [&](const at::Tensor& target, const at::Tensor& prediction, const char* part) {
    expect_error<DataError>(
        [&] {
          metric.add({{"target", target}}, {{"prediction", prediction}}, 1);
        },
        {"[Accuracy]", part});
  };
  const at::Tensor target = at::zeros({3}, at::kLong);
  expect(target, at::ones({3}), "[N, classes, ...]");
  expect(target, at::ones({3, 0}), "[N, classes, ...]");
  expect(target, at::ones({3, 2}, at::kComplexFloat), "real scores");
  expect(target, at::ones({3, 2}, at::kBool), "real scores");
  expect(target, at::ones({2, 2}), "expected [2]");
  expect(target, at::ones({3, 2, 4}), "expected [3, 4]");
  expect(at::zeros({3}), at::ones({3, 2}), "Float");
  expect_error<DataError>([&] { metric.add({}, {{"prediction", at::ones({3, 2})}}, 1); }, {"'target'"});
  expect_error<DataError>([&] { metric.add({{"target", target}}, {{"loss", at::ones({1})}}, 1); }, {"'prediction'"});
  EXPECT_TRUE(metric.compute().empty());
}

}  // namespace
}  // namespace duet
