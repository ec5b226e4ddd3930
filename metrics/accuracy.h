#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "../base/options.h"
#include "metric.h"

namespace duet {

struct AccuracyOptions {
  std::vector<int64_t> topk = {1};        // right if the target is among the k largest scores
  int64_t ignore_index = -100;            // targets of this number do not count, as in cross entropy
  std::string target = "target";          // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";  // of the outputs: scores [N, classes, ...]

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// Share of samples (pixels, tokens) whose target is among the k largest scores. Reported as "accuracy" for k = 1 alone,
// else as mmpretrain does: "accuracy/top1", "accuracy/top5". Of equal scores the lower class counts as the larger. A
// sample whose scores hold a NaN is never right; compute() warns of such.
class Accuracy : public Metric {
 public:
  // Throws ConfigError for options out of range.
  explicit Accuracy(AccuracyOptions options = {});

  std::vector<std::string> names() const override;
  void reset() override;
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;
  std::vector<at::Tensor> sums(at::Device device) override;

 private:
  void begin(at::Device device);

  AccuracyOptions options_;
  at::Tensor counts_;  // int64: right ones for each k, counted ones, bad targets, those with NaN
  at::Tensor bad_range_;
  int64_t classes_ = 0;
};

}  // namespace duet
