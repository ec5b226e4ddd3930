#include "metrics/class_metric.h"
#include <cmath>
#include <limits>
#include <memory>
#include <set>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "base/error.h"
#include "metrics/metric.h"
#include "tests/support/called_ops.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_lines.h"

namespace duet {
namespace {

using Names = std::vector<std::string>;

void add(Metric& metric, const at::Tensor& target, const at::Tensor& prediction) {
  metric.add({{"target", target}}, {{"prediction", prediction}}, 1);
}

at::Tensor numbers(const std::vector<int64_t>& classes) { return at::tensor(classes, at::kLong); }

// One prediction per sample, whatever the scores: a model that says nothing is no better than the first class.
TEST(Accuracy, LooksAmongTheKLargestAndGivesEqualScoresToTheLowerClass) {
  Accuracy metric({.topk = {1, 3, 4}});
  EXPECT_EQ(metric.names(), (Names{"accuracy/top1", "accuracy/top3", "accuracy/top4"}));
  for (const at::Tensor& scores : {at::tensor({4.F, 3.F, 2.F, 1.F}).repeat({4, 1}), at::zeros({4, 4})}) {
    metric.reset();
    add(metric, numbers({0, 1, 2, 3}), scores);
    EXPECT_EQ(metric.compute(), (MetricValues{{"accuracy/top1", 0.25}, {"accuracy/top3", 0.75}, {"accuracy/top4", 1}}));
  }
  Accuracy alone;
  add(alone, numbers({0, 1, 2, 3}), at::zeros({4, 4}));
  EXPECT_EQ(alone.compute().at("accuracy"), 0.25);
}

TEST(Accuracy, LeavesOutIgnoredTargets) {
  for (const std::vector<int64_t>& topk : {std::vector<int64_t>{1}, {2}}) {
    Accuracy metric({.topk = topk});
    const at::Tensor scores = at::tensor({0.F, 1.F, 2.F}).repeat({4, 1});
    add(metric, numbers({2, -100, 0, -100}), scores);
    EXPECT_EQ(metric.compute().begin()->second, 0.5);
    metric.reset();
    add(metric, numbers({-100, -100, -100, -100}), scores);
    EXPECT_TRUE(std::isnan(metric.compute().begin()->second));
  }
}

TEST(Accuracy, RefusesShapesAndTypesThatDoNotMatch) {
  Accuracy metric, five({.topk = {1, 5}});
  struct Case {
    at::Tensor target, prediction;
    const char* part;
  };
  const at::Tensor target = at::zeros({3}, at::kLong);
  for (const Case& one : std::vector<Case>{{target, at::ones({2}), "expected [2]"},
                                           {target, at::ones({4, 1}), "expected [4]"},
                                           {target, at::ones({}), "[N, classes, ...]"},
                                           {target, at::ones({3, 0}), "[N, classes, ...]"},
                                           {target, at::ones({3, 2}, at::kBool), "real scores"},
                                           {target, at::ones({3, 2, 4}), "expected [3, 4]"},
                                           {at::zeros({3}), at::ones({3, 2}), "Float"}}) {
    expect_error<DataError>([&] { add(metric, one.target, one.prediction); }, {"[Accuracy]", one.part});
  }
  expect_error<DataError>([&] { metric.add({}, {{"prediction", at::ones({3, 2})}}, 1); }, {"'target'"});
  expect_error<DataError>([&] { metric.add({{"target", target}}, {{"loss", at::ones({1})}}, 1); }, {"'prediction'"});
  expect_error<DataError>([&] { add(five, target, at::ones({3, 4})); }, {"of 4 classes", "topk 5"});
  EXPECT_TRUE(metric.compute().empty());
  expect_error<ConfigError>([] { Accuracy({.topk = {5, 5}}); }, {"topk 5 twice"});
}

// Adds one sample per pair of target and prediction.
void add(Metric& metric, int64_t classes, const std::vector<int64_t>& target, const std::vector<int64_t>& predicted) {
  const at::Tensor scores = at::one_hot(at::tensor(predicted, at::kLong), classes).to(at::kFloat);
  metric.add({{"target", at::tensor(target, at::kLong)}}, {{"prediction", scores}}, 1);
}

// Targets a a a b b, predicted a a b b c; class d occurs nowhere.
constexpr int64_t kClasses = 4;
const std::vector<int64_t> kTarget = {0, 0, 0, 1, 1}, kPredicted = {0, 0, 1, 1, 2};

// As torchmetrics' binary figures have it: above 0, a probability above one half, it is class 1. With the targets of
// binary_cross_entropy_with_logits too.
TEST(ClassMetrics, TakeOneLogit) {
  const at::Tensor logits = at::tensor({2.F, -1.F, 0.F, 0.5F, -3.F}), target = at::tensor({1, 0, 1, 0, 0}, at::kLong);
  const auto with = [&](const at::Tensor& prediction, const at::Tensor& wanted) {
    Accuracy accuracy;
    F1 f1({.num_classes = 2, .average = {"none"}});
    ConfusionMatrix matrix({.num_classes = 2, .flatten = true});
    MetricValues values;
    for (Metric* metric : {static_cast<Metric*>(&accuracy), static_cast<Metric*>(&f1), static_cast<Metric*>(&matrix)}) {
      metric->add({{"target", wanted}}, {{"prediction", prediction}}, 1);
      values.merge(metric->compute());
    }
    return values;
  };
  const MetricValues values = with(logits, target);
  EXPECT_DOUBLE_EQ(values.at("accuracy"), 3.0 / 5);
  EXPECT_DOUBLE_EQ(values.at("f1_1"), 2.0 / 4);  // one right, one missed, one too many
  EXPECT_EQ(values.at("confusion_1_0"), 1);
  EXPECT_EQ(values.at("confusion_0_1"), 1);
  EXPECT_EQ(with(logits.unsqueeze(1), target), values);
  EXPECT_EQ(with(logits.unsqueeze(1), target.to(at::kFloat).unsqueeze(1)), values);
  EXPECT_EQ(with(logits, target.to(at::kBool)), values);
  expect_error<DataError>([&] { with(logits, at::full({5}, 0.7)); }, {"5 class numbers", "0 to 1"});
}

TEST(IoUMetric, FollowsItsFormulas) {
  IoUMetric metric({.num_classes = kClasses,
                    .iou_metrics = {"mIoU", "mDice", "mFscore"},
                    .per_class = true,
                    .class_names = {"a", "b", "c", "d"}});
  EXPECT_TRUE(metric.compute().empty());
  EXPECT_EQ(metric.text(), "");
  add(metric, kClasses, kTarget, kPredicted);
  const MetricValues values = metric.compute();
  const auto near = [&](const char* name, double expected) { EXPECT_NEAR(values.at(name), expected, 1e-15) << name; };
  near("aAcc", 3.0 / 5);
  near("mIoU", (2.0 / 3 + 1.0 / 3 + 0) / 3);  // c is predicted once, never right; d has no value
  near("mAcc", (2.0 / 3 + 1.0 / 2) / 2);
  near("mDice", (4.0 / 5 + 2.0 / 4 + 0) / 3);
  near("mFscore", values.at("mDice"));
  near("mPrecision", (1.0 + 1.0 / 2 + 0) / 3);
  near("mRecall", (2.0 / 3 + 1.0 / 2) / 2);
  near("IoU_a", 2.0 / 3);
  near("IoU_c", 0);
  EXPECT_TRUE(std::isnan(values.at("IoU_d")));
  EXPECT_TRUE(std::isnan(values.at("Acc_c")));
  std::set<std::string> names;
  for (const std::string& name : metric.names()) {
    EXPECT_TRUE(values.count(name)) << name;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_EQ(names.size(), values.size());
  EXPECT_EQ(metric.names().front(), "aAcc");
  EXPECT_EQ(metric.text().substr(0, metric.text().find('\n')),
            "class     IoU     Acc    Dice  Fscore  Precision  Recall");
  EXPECT_NE(metric.text().find("\nd         nan     nan     nan     nan        nan     nan"), std::string::npos)
      << metric.text();
}

TEST(IoUMetric, IsNaNOrTheNumberInItsPlaceWhereNothingCounts) {
  IoUMetric metric({.num_classes = kClasses}), zero({.num_classes = kClasses, .nan_to_num = 0});
  for (IoUMetric* each : {&metric, &zero}) add(*each, kClasses, {255, 255}, {0, 1});
  for (const auto& [name, value] : metric.compute()) EXPECT_TRUE(std::isnan(value)) << name;
  for (const auto& [name, value] : zero.compute()) EXPECT_EQ(value, 0) << name;
  metric.reset();
  metric.add({{"target", at::empty({0, 4, 4}, at::kLong)}}, {{"prediction", at::empty({0, 4, 4, 4})}}, 0);
  EXPECT_TRUE(std::isnan(metric.compute().at("mIoU")));
  add(zero, kClasses, kTarget, kPredicted);
  EXPECT_NEAR(zero.compute().at("mIoU"), (2.0 / 3 + 1.0 / 3) / 4, 1e-15);
  EXPECT_NEAR(zero.compute().at("mAcc"), (2.0 / 3 + 1.0 / 2) / 4, 1e-15);
}

TEST(ConfusionMatrix, IsATableOrListsTheMostFrequentConfusionsOfManyClasses) {
  ConfusionMatrix few({.num_classes = 3, .class_names = {"shirt", "coat", "bag"}}), many({.num_classes = 50});
  EXPECT_TRUE(few.names().empty());
  EXPECT_EQ(few.text(), "");
  add(few, 3, {0, 0, 0, 1, 1}, {0, 0, 1, 1, 2});
  EXPECT_TRUE(few.compute().empty());
  EXPECT_EQ(few.text(),
            "target \\ predicted  shirt  coat  bag\n"
            "shirt                   2     1    0\n"
            "coat                    0     1    1\n"
            "bag                     0     0    0");
  add(many, 50, {7, 7, 7, 3, 3, 9, 9, 9, 9}, {8, 8, 8, 4, 4, 9, 9, 9, 9});
  EXPECT_EQ(many.text(),
            "target  taken for  count\n"
            "7               8      3\n"
            "3               4      2");
}

TEST(ClassMetric, CountsExactlyInHalfPrecisionAndManyBatches) {
  IoUMetric metric({.num_classes = 2});
  const at::Tensor scores = at::zeros({1, 2, 64, 64}, at::kBFloat16);
  for (int i = 0; i < 5000; ++i) {
    metric.add({{"target", at::full({1, 64, 64}, i == 0 ? 1 : 0, at::kByte)}}, {{"prediction", scores}}, 1);
  }
  EXPECT_DOUBLE_EQ(metric.compute().at("aAcc"), 4999.0 / 5000);  // 20 million pixels: too many for a float
}

// On other ranks, too, whose number of classes may be unknown here: none of them has added a batch.
TEST(ClassMetric, ReportsTargetsThatAreNoClassAtTheEnd) {
  const auto make = []() {
    std::vector<std::unique_ptr<Metric>> metrics;
    metrics.push_back(std::make_unique<Accuracy>(AccuracyOptions{.ignore_index = 255}));
    metrics.push_back(std::make_unique<Accuracy>(AccuracyOptions{.topk = {1, 2}, .ignore_index = 255}));
    metrics.push_back(std::make_unique<IoUMetric>(IoUMetricOptions{.num_classes = 3}));
    return metrics;
  };
  for (const int64_t bad : {int64_t{-1}, int64_t{3}, int64_t{-100}, std::numeric_limits<int64_t>::max() / 2}) {
    const auto metrics = make(), elsewhere = make();
    for (std::size_t i = 0; i < metrics.size(); ++i) {
      Metric& metric = *metrics[i];
      add(metric, 3, {0, 1, 255}, {0, 1, 1});
      EXPECT_NO_THROW(metric.compute());
      add(metric, 3, {0, bad, bad}, {0, 1, 1});
      add(metric, 3, {0, 1, 1}, {0, 1, 1});
      const std::vector<std::string> parts = {"found 2 class numbers in 'target' that do not exist", "expected 0 to 2",
                                              "ignore_index 255"};
      expect_error<DataError>([&] { metric.compute(); }, parts);
      elsewhere[i]->sums(at::kCPU)[0].add_(metric.sums(at::kCPU)[0]);
      expect_error<DataError>([&] { elsewhere[i]->compute(); }, {"found 2 class numbers"});
      metric.reset();
      add(metric, 3, {0, 1, 1}, {0, 1, 1});
      EXPECT_NO_THROW(metric.compute());
    }
    expect_error<DataError>([&] { elsewhere.back()->text(); }, {"[IoUMetric] found 2 class numbers"});
  }
}

TEST(ClassMetric, RefusesWhatDoesNotFit) {
  F1 metric({.num_classes = 3});
  expect_error<DataError>(
      [&] { metric.add({{"target", at::zeros({2, 2})}}, {{"prediction", at::ones({2, 2})}}, 1); },
      {"[F1] found 'target' Float [2, 2], expected class numbers", "or take MeanAbsoluteError or R2Score"});
  expect_error<DataError>([&] { add(metric, 4, {0}, {0}); }, {"[F1]", "[1, 4]", "set num_classes: 4"});
  expect_error<DataError>(
      [&] { metric.add({{"target", at::zeros({2}, at::kLong)}}, {{"prediction", at::ones({2})}}, 1); },
      {"[F1]", "expected 3 classes", "set num_classes: 2"});
  EXPECT_TRUE(metric.compute().empty());

  expect_error<ConfigError>([] { F1({}); }, {"[F1]", "num_classes 0", "2 to"});
  expect_error<ConfigError>([] { IoUMetric({.num_classes = 3, .iou_metrics = {}}); }, {"no iou_metrics"});
  expect_error<ConfigError>([] { IoUMetric({.num_classes = 3, .class_names = {"a", "b"}}); }, {"2 class_names", "= 3"});
  expect_error<ConfigError>([] { IoUMetric({.num_classes = 2, .class_names = {"a", "a"}}); }, {"none empty or twice"});
}

// Ops that wait for a GPU, or whose result has a size that only the device knows.
const std::set<std::string> kWaitingOps = {"aten::item",     "aten::_local_scalar_dense", "aten::is_nonzero",
                                           "aten::nonzero",  "aten::masked_select",       "aten::bincount",
                                           "aten::_unique2", "aten::unique_dim",          "aten::equal",
                                           "aten::histc"};

TEST(Metric, ReadsNothingBeforeItComputes) {
  std::vector<std::unique_ptr<Metric>> metrics;
  metrics.push_back(std::make_unique<MeanLoss>());
  metrics.push_back(std::make_unique<Perplexity>());
  metrics.push_back(std::make_unique<Accuracy>());
  metrics.push_back(std::make_unique<Accuracy>(AccuracyOptions{.topk = {1, 3}}));
  metrics.push_back(std::make_unique<IoUMetric>(IoUMetricOptions{.num_classes = 5}));
  metrics.push_back(std::make_unique<F1>(F1Options{.num_classes = 5}));
  metrics.push_back(std::make_unique<ConfusionMatrix>(ConfusionMatrixOptions{.num_classes = 5, .flatten = true}));
  const Batch batch = {{"target", at::randint(5, {2, 4, 4}, at::kLong)}};
  const NamedTensors outputs = {{"loss", at::rand({})}, {"prediction", at::rand({2, 5, 4, 4})}};
  for (const auto& metric : metrics) {
    const testing::CalledOps called;
    for (int i = 0; i < 3; ++i) metric->add(batch, outputs, 2);
    EXPECT_FALSE(testing::CalledOps::counts().empty());
    for (const auto& [name, times] : testing::CalledOps::counts())
      EXPECT_FALSE(kWaitingOps.contains(name)) << name << " by " << metric->names().front();
  }
  const testing::CalledOps called;
  batch["target"].sum().item<int64_t>();
  EXPECT_TRUE(testing::CalledOps::counts().contains("aten::item"));
}

TEST(ClassMetric, CountsASampleWithNaNScoresAsWrongAndAsNoClass) {
  IoUMetric iou({.num_classes = 3, .iou_metrics = {"mFscore", "mIoU"}, .per_class = true});
  F1 f1({.num_classes = 3, .average = {"micro", "none"}});
  Accuracy top1, top2({.topk = {1, 2}});
  ConfusionMatrix confusion({.num_classes = 3, .flatten = true});
  // Targets 0 0 1 2 and one that does not count; the second 0 has no score at all, the 1 a single NaN that is not its
  // own.
  at::Tensor scores = at::one_hot(at::tensor({0, 0, 1, 2, 0}, at::kLong), 3).to(at::kFloat);
  scores[1].fill_(NAN);
  scores[2][0] = NAN;
  scores[4].fill_(NAN);
  const Batch batch = {{"target", at::tensor({0, 0, 1, 2, 255}, at::kLong)}};
  const Batch other = {{"target", at::tensor({0, 0, 1, 2, -100}, at::kLong)}};
  iou.add(batch, {{"prediction", scores}}, 1);
  for (Metric* metric : std::initializer_list<Metric*>{&f1, &top1, &top2, &confusion}) {
    metric->add(other, {{"prediction", scores}}, 1);
  }
  MetricValues areas;
  const std::string log = testing::stderr_of([&] {
    areas = iou.compute();
    iou.text();  // says it no second time
  });
  const std::size_t said = log.find("[IoUMetric] found NaN in the 'prediction' of 2 samples");
  EXPECT_NE(said, std::string::npos) << log;
  EXPECT_EQ(log.find("found NaN", said + 20), std::string::npos) << log;
  EXPECT_EQ(areas.at("aAcc"), 0.5);
  EXPECT_EQ(areas.at("IoU_0"), 0.5);
  EXPECT_EQ(areas.at("IoU_1"), 0);
  EXPECT_EQ(areas.at("IoU_2"), 1);
  EXPECT_EQ(areas.at("Recall_0"), 0.5);
  EXPECT_EQ(areas.at("Precision_0"), 1);
  const MetricValues shares = f1.compute();
  EXPECT_EQ(shares.at("f1_micro"), 0.5);
  EXPECT_DOUBLE_EQ(shares.at("f1_0"), 2.0 / 3);
  EXPECT_NE(testing::stderr_of([&] { EXPECT_EQ(top1.compute().at("accuracy"), 0.5); }).find("of 2 samples"),
            std::string::npos);
  EXPECT_EQ(top2.compute().at("accuracy/top2"), 0.5);
  double sum = 0;
  for (const auto& [name, count] : confusion.compute()) sum += count;
  EXPECT_EQ(sum, 2);  // of four that count
}

}  // namespace
}  // namespace duet
