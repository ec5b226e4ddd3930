#include <algorithm>
#include <cmath>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "core/detail/evaluator.h"
#include "metrics/class_metric.h"
#include "metrics/metric.h"
#include "metrics/probability_metric.h"
#include "metrics/regression_metric.h"
#include "tests/support/rank_data.h"
#include "tests/support/ranks.h"
#include "tests/support/trainer_runs.h"

namespace duet {
namespace {

using testing::RankResult;
using testing::Ranks;
using testing::run_ranks;

constexpr int64_t kClasses = 5;

void add_metrics(BaseTrainer& trainer) {
  trainer.add_metric(std::make_unique<Accuracy>(AccuracyOptions{.topk = {1, 3}}));
  trainer.add_metric(std::make_unique<IoUMetric>(
      IoUMetricOptions{.num_classes = kClasses, .iou_metrics = {"mIoU", "mDice", "mFscore"}, .per_class = true}));
  trainer.add_metric(
      std::make_unique<F1>(F1Options{.num_classes = kClasses, .average = {"macro", "micro", "weighted", "none"}}));
  trainer.add_metric(
      std::make_unique<ConfusionMatrix>(ConfusionMatrixOptions{.num_classes = kClasses, .flatten = true}));
  trainer.add_metric(std::make_unique<Perplexity>());
  trainer.add_metric(std::make_unique<Auroc>(RankingOptions{.num_classes = kClasses}));
  trainer.add_metric(std::make_unique<AveragePrecision>(RankingOptions{.num_classes = kClasses}));
  trainer.add_metric(std::make_unique<CalibrationError>());
}

std::unique_ptr<BaseTrainer> trainer_of(const Ranks& ranks) {
  seed_all(5);
  TrainerOptions options;
  options.distributed.communicator = ranks;
  auto trainer = testing::make_trainer("eager", testing::mlp_task().make(), options);
  add_metrics(*trainer);
  return trainer;
}

// Batches of one sample per rank, so that what is computed per batch is the same everywhere.
std::unique_ptr<DataLoader> part_of(int64_t samples, const Ranks& ranks) {
  const NamedTensors numbered = testing::numbered_samples(testing::mlp_task(), samples);
  return testing::share_of(numbered, ranks->world_size(), ranks.get(), false);
}

NamedTensors tensors_of(const MetricValues& values) {
  NamedTensors tensors;
  for (const auto& [name, value] : values) tensors.emplace_back(name, at::scalar_tensor(value, at::kDouble));
  return tensors;
}

// What `world` ranks find, beside what one process does.
void expect_values_of_one_process(int64_t world, const std::function<MetricValues(const Ranks&)>& evaluate) {
  const auto body = [&](const Ranks& ranks) { return tensors_of(evaluate(ranks)); };
  const auto one = run_ranks(1, body), many = run_ranks(world, body);
  testing::expect_no_error(one);
  testing::expect_same_on_all(many);
  ASSERT_EQ(many[0].tensors.size(), one[0].tensors.size());
  EXPECT_GT(one[0].tensors.size(), 20U);
  for (const auto& [name, value] : many[0].tensors) {
    const double here = value.item<double>(), there = one[0].at(name).item<double>();
    if (name.ends_with("loss") || name.ends_with("perplexity") || name.ends_with("calibration_error")) {
      EXPECT_NEAR(here, there, 1e-12 * std::abs(there)) << name;
    } else {  // from whole numbers; NaN where a class has no sample
      EXPECT_TRUE(testing::same_bits(value, one[0].at(name))) << name << ": " << here << ", expected " << there;
    }
  }
}

// 3 samples on 4 ranks: one of them gets none. Of several datasets the ends come at other batches on each rank.
TEST(DistributedMetrics, AreThoseOfOneProcess) {
  for (const auto& [world, samples] : {std::pair<int64_t, int64_t>{2, 7}, {4, 3}, {4, 1}, {3, 12}}) {
    SCOPED_TRACE(std::to_string(samples) + " samples on " + std::to_string(world) + " ranks");
    expect_values_of_one_process(
        world, [n = samples](const Ranks& ranks) { return trainer_of(ranks)->validate(*part_of(n, ranks)); });
  }
  expect_values_of_one_process(2, [](const Ranks& ranks) { return trainer_of(ranks)->test(*part_of(7, ranks)); });
  expect_values_of_one_process(3, [](const Ranks& ranks) {
    const auto large = part_of(7, ranks), small = part_of(2, ranks);
    return trainer_of(ranks)->validate({{"large", *large}, {"small", *small}});
  });
}

// Figures that no rank has alone, of targets that no task here has: several numbers, and several labels.
TEST(DistributedRowMetrics, OfSeveralOutputsAreThoseOfOneProcess) {
  at::manual_seed(4);
  const at::Tensor prediction = at::randn({11, 2}, at::kDouble) + 1e6, target = at::randn({11, 2}, at::kDouble) + 1e6;
  const at::Tensor labels = at::randint(0, 2, {11, 2}, at::kLong);
  const auto body = [&](const Ranks& ranks) {
    R2Score r2;
    AveragePrecision precision({.num_classes = 2, .target = "labels"});
    CalibrationError calibration({.target = "classes"});
    const std::vector<Metric*> metrics = {&r2, &precision, &calibration};
    for (int64_t n = ranks->rank(); n < 11 && ranks->rank() < 2; n += std::min<int64_t>(2, ranks->world_size())) {
      const auto row = [n](const at::Tensor& tensor) { return tensor.slice(0, n, n + 1); };
      const Batch batch = {{"target", row(target)}, {"labels", row(labels)}, {"classes", row(labels).select(1, 0)}};
      for (Metric* metric : metrics) metric->add(batch, {{"prediction", row(prediction)}}, 1);
    }
    combine_over_ranks(metrics, *ranks, at::kCPU);
    MetricValues values;
    for (const Metric* metric : metrics) {
      for (const auto& value : metric->compute()) values.insert(value);
    }
    return tensors_of(values);
  };
  const at::Tensor distance = target - target.mean(0), errors = prediction - target;
  const double r2 = (1 - errors.square().sum(0) / distance.square().sum(0)).mean().item<double>();
  const auto one = run_ranks(1, body);
  testing::expect_no_error(one);
  for (const int64_t world : {1, 2, 3}) {  // the third rank sees nothing
    const auto many = run_ranks(world, body);
    testing::expect_no_error(many);
    for (const RankResult& rank : many) {
      ASSERT_EQ(rank.tensors.size(), 3U);
      EXPECT_NEAR(rank.at("r2").item<double>(), r2, 1e-9 * std::abs(r2)) << world;
      for (const char* name : {"map", "calibration_error"}) {
        EXPECT_NEAR(rank.at(name).item<double>(), one.front().at(name).item<double>(), 1e-12) << name << world;
      }
    }
  }
}

}  // namespace
}  // namespace duet
