#include <cmath>
#include <memory>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include <gtest/gtest.h>
#include "metrics/class_metric.h"

namespace duet {
namespace {

constexpr int64_t kIgnore = 255;

struct Case {
  int64_t count, classes, absent, ignore_every;
  uint32_t seed;
  std::vector<std::pair<std::string, double>> values;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> kCases = {
#include "tests/metrics/metric_golden.inc"
  };
  return kCases;
}

// As in make_metric_golden.py.
uint32_t mix(uint32_t x) {
  for (int i = 0; i < 2; ++i) x = ((x >> 16) ^ x) * 0x45D9F3BU;
  return (x >> 16) ^ x;
}

struct Samples {
  at::Tensor scores, target;
};

Samples samples(const Case& c) {
  Samples made{at::empty({c.count, c.classes}, at::kDouble), at::empty({c.count}, at::kLong)};
  auto scores = made.scores.accessor<double, 2>();
  auto target = made.target.accessor<int64_t, 1>();
  for (int64_t i = 0; i < c.count; ++i) {
    target[i] = mix(static_cast<uint32_t>(i) + 1'000'003 * c.seed) % static_cast<uint32_t>(c.classes);
    if (target[i] == c.absent) target[i] = (c.absent + 1) % c.classes;
    for (int64_t k = 0; k < c.classes; ++k) {
      scores[i][k] = mix(static_cast<uint32_t>(i * c.classes + k) + 7'000'001 * c.seed) / 4294967296.0;
    }
    if (c.absent >= 0) scores[i][c.absent] = -1;
    if (i % 2 == 1) scores[i][target[i]] += 0.5;
    if (c.classes > 2 && target[i] == 1) scores[i][1] = -0.5;
    if (c.ignore_every != 0 && i % c.ignore_every == 0) target[i] = kIgnore;
  }
  return made;
}

// In batches of 17, the samples of each as an image of one row.
MetricValues measure(Metric& metric, const Samples& all) {
  for (int64_t from = 0; from < all.target.size(0); from += 17) {
    const int64_t to = std::min<int64_t>(from + 17, all.target.size(0));
    metric.add({{"target", all.target.slice(0, from, to).unsqueeze(0)}},
               {{"prediction", all.scores.slice(0, from, to).t().unsqueeze(0)}}, 1);
  }
  return metric.compute();
}

// A sum over all cells, each times a number of its own; 0 for shares of nothing, as scikit-learn has it.
double checksum(const MetricValues& values, int64_t classes) {
  double sum = 0;
  for (int64_t t = 0; t < classes; ++t) {
    for (int64_t p = 0; p < classes; ++p) {
      const double cell = values.at("confusion_" + std::to_string(t) + "_" + std::to_string(p));
      if (!std::isnan(cell)) sum += cell * mix(static_cast<uint32_t>(t * classes + p));
    }
  }
  return sum;
}

MetricValues ours(const Case& c) {
  const Samples all = samples(c);
  MetricValues values;
  const auto gather = [&](Metric&& metric) { values.merge(measure(metric, all)); };
  gather(Accuracy({.ignore_index = kIgnore}));
  if (c.classes > 2) gather(Accuracy({.topk = {2, c.classes - 1}, .ignore_index = kIgnore}));
  gather(F1({.num_classes = c.classes, .average = {"macro", "micro", "weighted", "none"}, .ignore_index = kIgnore}));
  IoUMetric beta2({.num_classes = c.classes, .iou_metrics = {"mFscore"}, .beta = 2});
  values["mFscore_beta2"] = measure(beta2, all).at("mFscore");
  gather(IoUMetric({.num_classes = c.classes, .iou_metrics = {"mIoU", "mDice", "mFscore"}}));
  for (const char* normalize : {"none", "true", "pred", "all"}) {
    ConfusionMatrix matrix(
        {.num_classes = c.classes, .normalize = normalize, .flatten = true, .ignore_index = kIgnore});
    values["confusion_" + std::string(normalize)] = checksum(measure(matrix, all), c.classes);
  }
  return values;
}

TEST(MetricGolden, EqualsScikitLearn) {
  ASSERT_FALSE(cases().empty());
  for (const Case& c : cases()) {
    const MetricValues found = ours(c);
    for (const auto& [name, expected] : c.values) {
      ASSERT_TRUE(found.count(name)) << name;
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(found.at(name))) << name << ", seed " << c.seed;
      } else {
        EXPECT_NEAR(found.at(name), expected, 1e-13 * std::max(1.0, expected)) << name << ", seed " << c.seed;
      }
    }
    EXPECT_EQ(found.at("aAcc"), found.at("accuracy"));
  }
}

}  // namespace
}  // namespace duet
