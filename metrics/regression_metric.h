#pragma once

#include <string>
#include <vector>
#include "../base/options.h"
#include "metric.h"

namespace duet {

struct RegressionOptions {
  std::string target = "target";          // of the batch: numbers [N, ...]
  std::string prediction = "prediction";  // of the outputs: as many numbers of as many samples

  static const OptionFields& fields();
};

// A mean over all values of an evaluation, in float64 on their device.
class RegressionMetric : public SummedMetric {
 public:
  // Throws DataError unless prediction and target hold as many numbers of as many samples.
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  std::vector<std::string> names() const override { return {name_}; }
  MetricValues compute() const override;

 protected:
  // `error_of` a difference is what the mean is taken over. Throws ConfigError for options out of range.
  RegressionMetric(std::string name, at::Tensor (*error_of)(const at::Tensor&), RegressionOptions options);

 private:
  std::string name_;
  at::Tensor (*error_of_)(const at::Tensor&);
  RegressionOptions options_;
};

// Mean of (prediction - target)^2, reported as "mse".
class MeanSquaredError : public RegressionMetric {
 public:
  explicit MeanSquaredError(RegressionOptions options = {});
};

// Mean of |prediction - target|, reported as "mae".
class MeanAbsoluteError : public RegressionMetric {
 public:
  explicit MeanAbsoluteError(RegressionOptions options = {});
};

// 1 - squared errors / squared distances of the targets from their mean, reported as "r2": of several numbers per
// sample that of each, on the mean (scikit-learn's r2_score). Numbers whose targets are all alike have none and are
// left out; NaN where there are no others.
class R2Score : public Metric {
 public:
  explicit R2Score(RegressionOptions options = {});

  std::vector<std::string> names() const override { return {"r2"}; }
  void reset() override { moments_.reset(); }
  // Throws DataError as RegressionMetric does, and for another number of outputs than before.
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;
  // Means and squared distances from them do not add up over ranks.
  std::vector<at::Tensor> sums(at::Device /*device*/) override { return {}; }
  std::vector<at::Tensor*> rows() override;

 private:
  RegressionOptions options_;
  at::Tensor moments_;  // float64 [outputs, 5], on ranks' request once for each of them
};

}  // namespace duet
