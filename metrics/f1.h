#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "../base/options.h"
#include "class_metric.h"

namespace duet {

struct F1Options {
  int64_t num_classes = 0;                       // required
  std::vector<std::string> average = {"macro"};  // macro, micro, weighted; none: one value per class
  int64_t ignore_index = -100;                   // targets of this number do not count
  std::string target = "target";                 // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";         // of the outputs: scores [N, classes, ...]
  std::vector<std::string> class_names{};        // empty: 0, 1, ...

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// F1 of samples that belong to one class each: 2 TP / (2 TP + FP + FN), reported as "f1_macro", "f1_micro",
// "f1_weighted" and, for none, "f1_<class>". A class that occurs neither in targets nor in predictions has no value
// (NaN) and is left out of the averages, as scikit-learn and torchmetrics do. f1_micro equals the accuracy.
class F1 : public ClassMetric {
 public:
  // Throws ConfigError for options out of range.
  explicit F1(F1Options options);

  std::vector<std::string> names() const override;
  MetricValues compute() const override;

 private:
  F1Options options_;
};

}  // namespace duet
