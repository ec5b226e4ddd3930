#include <algorithm>
#include <cmath>
#include <string>
#include <gtest/gtest.h>
#include "metrics/class_metric.h"
#include "tests/support/torch_reference.h"

// Figures of classes against scikit-learn's: class_references.py.

namespace duet {
namespace {

constexpr int64_t kIgnore = 255;

// In batches of 17, the samples of each as an image of one row.
MetricValues measure(Metric&& metric, const at::Tensor& scores, const at::Tensor& target) {
  for (int64_t from = 0; from < target.size(0); from += 17) {
    const int64_t to = std::min<int64_t>(from + 17, target.size(0));
    metric.add({{"target", target.slice(0, from, to).unsqueeze(0)}},
               {{"prediction", scores.slice(0, from, to).t().unsqueeze(0)}}, 1);
  }
  return metric.compute();
}

MetricValues ours(const at::Tensor& scores, const at::Tensor& target) {
  const int64_t classes = scores.size(1);
  MetricValues values;
  const auto gather = [&](Metric&& metric) { values.merge(measure(std::move(metric), scores, target)); };
  gather(Accuracy({.ignore_index = kIgnore}));
  if (classes > 2) gather(Accuracy({.topk = {2, classes - 1}, .ignore_index = kIgnore}));
  gather(F1({.num_classes = classes, .average = {"macro", "micro", "weighted", "none"}, .ignore_index = kIgnore}));
  const IoUMetricOptions beta2{.num_classes = classes, .iou_metrics = {"mFscore"}, .beta = 2};
  values["mFscore_beta2"] = measure(IoUMetric(beta2), scores, target).at("mFscore");
  gather(IoUMetric({.num_classes = classes, .iou_metrics = {"mIoU", "mDice", "mFscore"}}));
  for (const std::string normalize : {"none", "true", "pred", "all"}) {
    const ConfusionMatrixOptions options{
        .num_classes = classes, .normalize = normalize, .flatten = true, .ignore_index = kIgnore};
    for (const auto& [name, value] : measure(ConfusionMatrix(options), scores, target))
      values[normalize + "/" + name] = std::isnan(value) ? 0 : value;
  }
  return values;
}

TEST(MetricGolden, EqualsScikitLearn) {
  const std::string path = testing::reference_path("metrics/classes.safetensors");
  const StateDict references = testing::torch_reference(path);
  if (references.tensors().empty()) GTEST_SKIP() << testing::no_reference(path, "metrics/make_references.py");
  int64_t cases = 0;
  for (; references.has(std::to_string(cases) + ".scores"); ++cases) {
    const StateDict one = references.part(std::to_string(cases)), figures = one.part("figures");
    const MetricValues found = ours(one.tensor("scores"), one.tensor("target"));
    for (const auto& [name, tensor] : figures.tensors()) {
      const double expected = tensor.item<double>();
      ASSERT_TRUE(found.count(name)) << name;
      if (std::isnan(expected)) {
        EXPECT_TRUE(std::isnan(found.at(name))) << name << ", case " << cases;
      } else {
        EXPECT_NEAR(found.at(name), expected, 1e-13 * std::max(1.0, expected)) << name << ", case " << cases;
      }
    }
    EXPECT_EQ(found.at("aAcc"), found.at("accuracy"));
  }
  EXPECT_EQ(cases, 6);
}

}  // namespace
}  // namespace duet
