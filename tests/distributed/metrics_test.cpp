#include <algorithm>
#include <cmath>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>
#include "core/detail/combined_metrics.h"
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

// Batches of one sample per rank, so that what is computed per batch is the same everywhere.
NamedTensors evaluate(int64_t samples, bool test, const std::shared_ptr<Communicator>& ranks) {
  seed_all(5);
  const testing::ToyTask task = testing::mlp_task();
  TrainerOptions options;
  options.distributed.communicator = ranks;
  const auto trainer = testing::make_trainer("eager", task.make(), options);
  add_metrics(*trainer);
  const auto data =
      testing::share_of(testing::numbered_samples(task, samples), ranks->world_size(), ranks.get(), false);
  NamedTensors values;
  for (const auto& [name, value] : test ? trainer->test(*data) : trainer->validate(*data)) {
    values.emplace_back(name, at::scalar_tensor(value, at::kDouble));
  }
  return values;
}

void expect_equal(const RankResult& rank, const RankResult& one) {
  ASSERT_EQ(rank.tensors.size(), one.tensors.size());
  EXPECT_GT(one.tensors.size(), 20U);
  for (const auto& [name, value] : rank.tensors) {
    const double here = value.item<double>(), there = one.at(name).item<double>();
    if (name == "loss" || name == "perplexity" || name == "calibration_error") {
      EXPECT_NEAR(here, there, 1e-12 * std::abs(there)) << name;
    } else {  // from whole numbers
      EXPECT_TRUE(testing::same_bits(value, one.at(name))) << name << ": " << here << ", expected " << there;
    }
  }
}

class DistributedMetrics : public ::testing::TestWithParam<std::pair<int64_t, int64_t>> {};

TEST_P(DistributedMetrics, AreThoseOfOneProcess) {
  const auto [world, samples] = GetParam();
  for (const bool test : {false, true}) {
    const auto body = [&, samples = samples](const auto& ranks) { return evaluate(samples, test, ranks); };
    const auto one = run_ranks(1, body);
    testing::expect_no_error(one);
    const auto many = run_ranks(world, body);
    testing::expect_same_on_all(many);
    for (const RankResult& rank : many) expect_equal(rank, one.front());
  }
}

// 3 samples on 4 ranks: one of them gets none.
INSTANTIATE_TEST_SUITE_P(Worlds, DistributedMetrics,
                         ::testing::Values(std::pair(2, 7), std::pair(4, 3), std::pair(4, 1), std::pair(3, 12)));

// Of several datasets, whose ends come at other batches on each rank.
TEST(DistributedNamedMetrics, AreThoseOfOneProcess) {
  const auto body = [](const std::shared_ptr<Communicator>& ranks) {
    seed_all(5);
    const testing::ToyTask task = testing::mlp_task();
    TrainerOptions options;
    options.distributed.communicator = ranks;
    const auto trainer = testing::make_trainer("eager", task.make(), options);
    add_metrics(*trainer);
    const auto part = [&](int64_t samples) {
      return testing::share_of(testing::numbered_samples(task, samples), ranks->world_size(), ranks.get(), false);
    };
    const auto large = part(7), small = part(2);
    NamedTensors values;
    for (const auto& [name, value] : trainer->validate({{"large", *large}, {"small", *small}})) {
      values.emplace_back(name, at::scalar_tensor(value, at::kDouble));
    }
    return values;
  };
  const auto one = run_ranks(1, body);
  testing::expect_no_error(one);
  const auto many = run_ranks(3, body);
  testing::expect_same_on_all(many);
  for (const RankResult& rank : many) {
    ASSERT_EQ(rank.tensors.size(), one.front().tensors.size());
    for (const auto& [name, value] : rank.tensors) {
      const at::Tensor& expected = one.front().at(name);  // NaN where a class has no sample
      const double here = value.item<double>(), there = expected.item<double>();
      const bool is_near = std::abs(here - there) <= 1e-9 * std::max(1.0, std::abs(there));
      EXPECT_TRUE(is_near || testing::same_bits(value, expected)) << here << ", expected " << there << " of " << name;
    }
  }
}

// Figures that no rank has alone, of targets that no task here has: several numbers, and several labels.
TEST(DistributedRowMetrics, OfSeveralOutputsAreThoseOfOneProcess) {
  at::manual_seed(4);
  const at::Tensor prediction = at::randn({11, 2}, at::kDouble) + 1e6, target = at::randn({11, 2}, at::kDouble) + 1e6;
  const at::Tensor labels = at::randint(0, 2, {11, 2}, at::kLong);
  const auto body = [&](const std::shared_ptr<Communicator>& ranks) {
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
    NamedTensors values;
    for (const Metric* metric : metrics) {
      for (const auto& [name, value] : metric->compute())
        values.emplace_back(name, at::scalar_tensor(value, at::kDouble));
    }
    return values;
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
