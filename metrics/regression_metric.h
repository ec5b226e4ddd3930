#pragma once

#include <string>
#include <vector>
#include "../base/options.h"
#include "metric.h"

namespace duet {

struct RegressionOptions {
  std::string target = "target";          // of the batch: numbers
  std::string prediction = "prediction";  // of the outputs: as many numbers

  static const OptionFields& fields();
};

// What figures over numbers start from: sums over all values of an evaluation, in float64 on their device.
class RegressionMetric : public Metric {
 public:
  // Throws ConfigError for options out of range.
  explicit RegressionMetric(RegressionOptions options = {});

  void reset() override { sums_.reset(); }
  // Throws DataError unless prediction and target hold as many numbers.
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  std::vector<at::Tensor> sums(at::Device device) override;

 protected:
  struct Sums {
    double count = 0, squared_errors = 0, absolute_errors = 0, targets = 0, squared_targets = 0;
  };
  // Reads the device.
  Sums read() const;

 private:
  RegressionOptions options_;
  at::Tensor sums_;  // float64 [5]
};

// Mean of (prediction - target)^2, reported as "mse".
class MeanSquaredError : public RegressionMetric {
 public:
  using RegressionMetric::RegressionMetric;
  std::vector<std::string> names() const override { return {"mse"}; }
  MetricValues compute() const override;
};

// Mean of |prediction - target|, reported as "mae".
class MeanAbsoluteError : public RegressionMetric {
 public:
  using RegressionMetric::RegressionMetric;
  std::vector<std::string> names() const override { return {"mae"}; }
  MetricValues compute() const override;
};

// 1 - squared errors / squared distances of the targets from their mean, reported as "r2". NaN for targets that are all
// alike.
class R2Score : public RegressionMetric {
 public:
  using RegressionMetric::RegressionMetric;
  std::vector<std::string> names() const override { return {"r2"}; }
  MetricValues compute() const override;
};

}  // namespace duet
