#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include "../base/options.h"
#include "class_metric.h"

namespace duet {

struct ConfusionMatrixOptions {
  int64_t num_classes = 0;                 // required
  std::string normalize = "none";          // counts; or shares: of each target "true", each prediction "pred", of "all"
  bool flatten = false;                    // also report each cell as "confusion_<target>_<prediction>"
  int64_t ignore_index = -100;             // targets of this number do not count
  std::string target = "target";           // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";   // of the outputs: scores [N, classes, ...]
  std::vector<std::string> class_names{};  // empty: 0, 1, ...

  static const OptionFields& fields();
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
};

// Which classes are taken for which: a table for people, text(), a row per target. Of more than 20 classes the table
// lists the 20 most frequent confusions instead. It reports no number unless `flatten` is set, as a matrix is neither
// better nor worse than another.
class ConfusionMatrix : public ClassMetric {
 public:
  // Throws ConfigError for options out of range.
  explicit ConfusionMatrix(ConfusionMatrixOptions options);

  std::vector<std::string> names() const override;
  // Cells that are shares of nothing are NaN.
  MetricValues compute() const override;
  std::string text() const override;

 private:
  double cell(const Matrix& matrix, int64_t target, int64_t prediction) const;
  std::string shown(const Matrix& matrix, int64_t target, int64_t prediction) const;
  std::string whole_table(const Matrix& matrix) const;
  std::string most_confused(const Matrix& matrix) const;

  ConfusionMatrixOptions options_;
};

}  // namespace duet
