#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "../base/options.h"
#include "metric.h"

namespace duet {

struct RankingOptions {
  int64_t num_classes = 1;                // 1: scores [N] or [N, 1] of the class 1 against targets 0 and 1
  std::string target = "target";          // of the batch: class numbers [N], or 0 and 1 of each class [N, classes]
  std::string prediction = "prediction";  // of the outputs: logits [N, classes], or [N] scores of class 1

  static const OptionFields& fields();
};

// What figures over the order of scores start from: all scores and targets of an evaluation, on the CPU. Logits of
// several classes become probabilities (softmax), so that samples compare; where a sample may belong to several, each
// class is a question of its own and its logits stay.
class RankingMetric : public Metric {
 public:
  explicit RankingMetric(RankingOptions options = {});

  void reset() override;
  // Throws DataError for scores or targets of another shape, and targets that are no class.
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  std::vector<at::Tensor> sums(at::Device /*device*/) override { return {}; }
  std::vector<at::Tensor*> rows() override;

 protected:
  // The targets of one class, by falling score, cut into groups of equal scores.
  struct Group {
    double positives = 0, negatives = 0;
  };
  std::vector<Group> groups_of(int64_t column) const;
  // `figure` of every class that has both positives and negatives, on the mean; NaN if none has. Nothing if nothing was
  // added.
  MetricValues mean_over_classes(const std::string& name, double (*figure)(const std::vector<Group>&)) const;

 private:
  // Whether each sample belongs to each class: bool [N, classes], on the CPU.
  at::Tensor positives_of(const at::Tensor& targets) const;
  // All batches as one.
  void join() const;

  RankingOptions options_;
  mutable std::vector<at::Tensor> scores_, positives_;  // of each batch: float64 and bool [n, classes]
};

// Area under the ROC curve: how likely a positive scores above a negative, ties counted half. Of several classes the
// mean of one against the others (Hand and Till 2001's "ovr", macro), of several labels per sample the mean over them.
// Reported as "auroc".
class Auroc : public RankingMetric {
 public:
  using RankingMetric::RankingMetric;
  std::vector<std::string> names() const override { return {"auroc"}; }
  MetricValues compute() const override;
};

// Average precision, the sum of precision times gain in recall over falling thresholds; of several classes or labels
// the mean (mAP). Reported as "map".
class AveragePrecision : public RankingMetric {
 public:
  using RankingMetric::RankingMetric;
  std::vector<std::string> names() const override { return {"map"}; }
  MetricValues compute() const override;
};

struct CalibrationErrorOptions {
  int64_t bins = 15;
  std::string target = "target";          // of the batch: class numbers [N]
  std::string prediction = "prediction";  // of the outputs: logits [N, classes], or [N] of the class 1

  static const OptionFields& fields();
};

// Expected calibration error: the distance between confidence and accuracy over bins of equal width, each as much as it
// has samples (Guo et al. 2017). Reported as "calibration_error".
class CalibrationError : public SummedMetric {
 public:
  explicit CalibrationError(CalibrationErrorOptions options = {});

  std::vector<std::string> names() const override { return {"calibration_error"}; }
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;

 private:
  CalibrationErrorOptions options_;
  int64_t classes_ = 0;
};

}  // namespace duet
