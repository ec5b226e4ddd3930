#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "metric.h"

namespace duet {

// What every metric over classes asks for.
struct ClassOptions {
  int64_t num_classes = 0;                 // required: the second size of the prediction
  int64_t ignore_index = -100;             // targets of this number do not count, as in cross entropy
  std::string target = "target";           // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";   // of the outputs: scores [N, classes, ...]; the largest is the prediction
  std::vector<std::string> class_names{};  // for tables and results per class; empty: 0, 1, ...
};

// What a metric needs that follows from the confusion matrix: it is counted on the device, exactly, in int64. A sample
// whose scores hold a NaN is predicted as no class: it counts as its target's, and as wrong, with a warning.
class ClassMetric : public Metric {
 public:
  void reset() override;
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  std::vector<at::Tensor> sums(at::Device device) override;

 protected:
  // Counts by target and prediction; after the classes there is the prediction "none".
  struct Matrix {
    int64_t classes = 0;
    std::vector<int64_t> counts{};  // [target * (classes + 1) + prediction]; empty if nothing was added

    int64_t at(int64_t target, int64_t prediction) const { return counts[target * (classes + 1) + prediction]; }
    int64_t of_target(int64_t c) const;      // samples whose target is c, those without a prediction included
    int64_t of_prediction(int64_t c) const;  // samples predicted as c
    int64_t of_none() const;                 // samples without a prediction
    int64_t correct() const;
    int64_t total() const;
  };

  // `who` begins messages. Throws ConfigError for options out of range.
  ClassMetric(std::string who, ClassOptions options);

  // Reads the device, and warns of samples without a prediction once. Throws DataError if there were targets that are
  // no class.
  Matrix matrix() const;
  int64_t num_classes() const { return options_.num_classes; }
  const std::vector<std::string>& class_names() const { return options_.class_names; }  // never empty

 private:
  void begin(at::Device device);

  std::string who_;
  ClassOptions options_;
  at::Tensor counts_;  // int64: the matrix, ignored targets, bad targets
  at::Tensor bad_range_;
  mutable bool warned_ = false;
};

}  // namespace duet
