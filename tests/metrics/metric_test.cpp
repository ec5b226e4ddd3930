#include "metrics/metric.h"
#include <cmath>
#include <string>
#include <vector>
#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "tests/support/expect_error.h"

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

TEST(MeanLoss, LeavesOutABatchWithoutWeightHoldsNoGraphAndCrossesInferenceMode) {
  MeanLoss metric;
  metric.add({}, {{"loss", at::scalar_tensor(NAN)}}, 0);
  EXPECT_TRUE(metric.compute().empty());
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

TEST(Perplexity, IsTheExponentialOfTheMeanOverAllTokens) {
  const at::Tensor losses = at::rand({10}, at::kDouble);
  Perplexity metric({.loss = "nll"});
  EXPECT_EQ(metric.names(), std::vector<std::string>{"perplexity"});
  EXPECT_TRUE(metric.compute().empty());
  for (const auto& [from, to] : {std::pair{0, 4}, {4, 8}, {8, 10}}) {
    metric.add({}, {{"nll", losses.slice(0, from, to).mean()}, {"loss", at::ones({})}}, to - from);
  }
  EXPECT_NEAR(metric.compute().at("perplexity"), losses.mean().exp().item<double>(), 1e-14);
  metric.reset();
  metric.add({}, {{"nll", at::scalar_tensor(NAN)}}, 0);
  EXPECT_TRUE(std::isnan(metric.compute().at("perplexity")));  // nothing to divide by, and still its name
  expect_error<DataError>([&] { metric.add({}, {{"loss", at::ones({})}}, 1); }, {"[Perplexity]", "'nll'"});
}

TEST(Metric, OfAUserNeedsNoSumsInOneProcess) {
  class Mine : public Metric {
   public:
    std::vector<std::string> names() const override { return {"mine"}; }
    void reset() override {}
    void add(const Batch&, const NamedTensors&, double) override {}
    MetricValues compute() const override { return {{"mine", 1}}; }
  };
  EXPECT_EQ(Mine().text(), "");
  expect_error<ConfigError>([] { Mine().sums(at::kCPU); }, {"override sums()", "one process"});
}

bool less(const std::string& metric, const std::string& rule = "") { return less_is_better("Test", metric, rule); }

// The keys of mmengine's CheckpointHook, and what users make of them; our own; the last part of a path first.
TEST(MetricRule, GoesByTheName) {
  for (const char* name : {"acc",
                           "top",
                           "AR@100",
                           "auc",
                           "precision",
                           "mAP",
                           "mDice",
                           "mIoU",
                           "mAcc",
                           "aAcc",
                           "ACC",
                           "accuracy/top1",
                           "coco/bbox_mAP",
                           "single-label/precision",
                           "val_auc",
                           "mFscore",
                           "mRecall",
                           "f1_macro",
                           "IoU_shirt",
                           "test/f1_3",
                           "psnr",
                           "loss_head/mIoU",
                           "accuracy/shirts"}) {
    EXPECT_FALSE(less(name)) << name;
  }
  for (const char* name : {"loss", "val_LOSS", "val/loss", "decode.loss_ce", "perplexity", "word_error_rate", "rmse",
                           "val-mse", "MAPE", "text/nll", "top1_error", "accuracy_head/loss"}) {
    EXPECT_TRUE(less(name)) << name;
  }
  expect_error<ConfigError>([] { less("score"); }, {"[Test] found metric 'score'", "not what is better", "set rule"});
  expect_error<ConfigError>([] { less("acc_loss"); }, {"'acc_loss'", "both", "set rule"});
}

}  // namespace
}  // namespace duet
