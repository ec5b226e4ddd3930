#include <cmath>
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "metrics/class_metric.h"
#include "tests/support/expect_error.h"

namespace duet {
namespace {

using Names = std::vector<std::string>;

void add(Metric& metric, const at::Tensor& target, const at::Tensor& prediction) {
  metric.add({{"target", target}}, {{"prediction", prediction}}, 1);
}

at::Tensor classes(const std::vector<int64_t>& numbers) { return at::tensor(numbers, at::kLong); }

TEST(Accuracy, IsTheShareOfRightSamples) {
  Accuracy metric;
  EXPECT_EQ(metric.names(), Names{"accuracy"});
  EXPECT_TRUE(metric.compute().empty());
  const at::Tensor scores = at::tensor({0.F, 1.F, 5.F, 2.F, 0.F, 1.F}).view({3, 2});  // classes 1, 0, 1
  add(metric, classes({1, 0, 0}), scores);
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 2.0 / 3);
  add(metric, at::tensor({1}, at::kInt), scores.slice(0, 0, 1));
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 3.0 / 4);
  metric.reset();
  EXPECT_TRUE(metric.compute().empty());
}

TEST(Accuracy, CountsEveryPositionOfASequenceOrImage) {
  Accuracy metric({.target = "label", .prediction = "logits"});
  const at::Tensor label = at::randint(5, {2, 3, 4}, at::kLong);
  const at::Tensor logits = at::zeros({2, 5, 3, 4}).scatter(1, label.unsqueeze(1), 1.0);
  metric.add({{"label", label}}, {{"logits", logits}}, 2);
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 1.0);
  metric.add({{"label", label.add(1).remainder(5)}}, {{"logits", logits}}, 2);
  EXPECT_DOUBLE_EQ(metric.compute().at("accuracy"), 0.5);
}

TEST(Accuracy, LooksAmongTheKLargest) {
  Accuracy metric({.topk = {1, 3, 4}});
  EXPECT_EQ(metric.names(), (Names{"accuracy/top1", "accuracy/top3", "accuracy/top4"}));
  EXPECT_EQ(Accuracy({.topk = {5}}).names(), Names{"accuracy/top5"});
  const at::Tensor scores = at::tensor({4.F, 3.F, 2.F, 1.F}).repeat({4, 1});
  add(metric, classes({0, 1, 2, 3}), scores);
  EXPECT_EQ(metric.compute(), (MetricValues{{"accuracy/top1", 0.25}, {"accuracy/top3", 0.75}, {"accuracy/top4", 1}}));
}

// One prediction per sample, whatever the scores: a model that says nothing is no better than the first class.
TEST(Accuracy, GivesEqualScoresToTheLowerClass) {
  for (const std::vector<int64_t>& topk : {std::vector<int64_t>{1}, {1, 2}}) {
    Accuracy metric({.topk = topk});
    add(metric, classes({0, 1, 2, 3}), at::zeros({4, 4}));
    EXPECT_EQ(metric.compute().begin()->second, 0.25);
  }
  Accuracy metric({.topk = {1, 2}});
  add(metric, classes({0, 1, 2, 3}), at::zeros({4, 4}));
  EXPECT_EQ(metric.compute().at("accuracy/top2"), 0.5);
}

TEST(Accuracy, LeavesOutIgnoredTargets) {
  for (const std::vector<int64_t>& topk : {std::vector<int64_t>{1}, {2}}) {
    Accuracy metric({.topk = topk});
    const at::Tensor scores = at::tensor({0.F, 1.F, 2.F}).repeat({4, 1});
    add(metric, classes({2, -100, 0, -100}), scores);
    EXPECT_EQ(metric.compute().begin()->second, 0.5);
    add(metric, classes({-100, -100, -100, -100}), scores);
    EXPECT_EQ(metric.compute().begin()->second, 0.5);
    metric.reset();
    add(metric, classes({-100, -100, -100, -100}), scores);
    EXPECT_TRUE(std::isnan(metric.compute().begin()->second));
  }
  Accuracy padded({.ignore_index = 0});
  add(padded, classes({0, 0, 1}), at::tensor({1.F, 0.F}).repeat({3, 1}));
  EXPECT_EQ(padded.compute().at("accuracy"), 0);
}

TEST(Accuracy, RefusesShapesAndTypesThatDoNotMatch) {
  Accuracy metric;
  const auto expect = [&](const at::Tensor& target, const at::Tensor& prediction, const char* part) {
    expect_error<DataError>([&] { add(metric, target, prediction); }, {"[Accuracy]", part});
  };
  const at::Tensor target = at::zeros({3}, at::kLong);
  expect(target, at::ones({2}), "expected [2]");
  expect(target, at::ones({4, 1}), "expected [4]");
  expect(target, at::ones({}), "[N, classes, ...]");
  expect(target, at::ones({3, 0}), "[N, classes, ...]");
  expect(target, at::ones({3, 2}, at::kComplexFloat), "real scores");
  expect(target, at::ones({3, 2}, at::kBool), "real scores");
  expect(target, at::ones({2, 2}), "expected [2]");
  expect(target, at::ones({3, 2, 4}), "expected [3, 4]");
  expect(at::zeros({3}), at::ones({3, 2}), "Float");
  expect_error<DataError>([&] { metric.add({}, {{"prediction", at::ones({3, 2})}}, 1); }, {"'target'"});
  expect_error<DataError>([&] { metric.add({{"target", target}}, {{"loss", at::ones({1})}}, 1); }, {"'prediction'"});
  Accuracy five({.topk = {1, 5}});
  expect_error<DataError>([&] { add(five, target, at::ones({3, 4})); }, {"of 4 classes", "topk 5"});
  EXPECT_TRUE(metric.compute().empty());
}

TEST(Accuracy, RefusesOptionsOutOfRange) {
  expect_error<ConfigError>([] { Accuracy({.topk = {}}); }, {"[Accuracy]", "no topk"});
  expect_error<ConfigError>([] { Accuracy({.topk = {1, 0}}); }, {"topk[1] is 0", ">= 1"});
  expect_error<ConfigError>([] { Accuracy({.topk = {5, 5}}); }, {"topk 5 twice"});
}

}  // namespace
}  // namespace duet
