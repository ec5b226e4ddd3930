#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "../base/options.h"
#include "metric.h"

namespace duet {

// What every metric over classes asks for.
struct ClassOptions {
  int64_t num_classes = 0;                 // required: the second size of the prediction
  int64_t ignore_index = -100;             // targets of this number do not count, as in cross entropy
  std::string target = "target";           // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";   // of the outputs: scores [N, classes, ...]; the largest is the prediction;
                                           // or one logit [N] or [N, 1, ...]: above 0 it is class 1, else class 0
  std::vector<std::string> class_names{};  // for tables and results per class; empty: 0, 1, ...
};

struct AccuracyOptions {
  std::vector<int64_t> topk = {1};        // right if the target is among the k largest scores
  int64_t ignore_index = -100;            // targets of this number do not count, as in cross entropy
  std::string target = "target";          // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";  // of the outputs: scores [N, classes, ...]

  static const OptionFields& fields();
};

// Share of samples (pixels, tokens) whose target is among the k largest scores. Reported as "accuracy" for k = 1 alone,
// else as mmpretrain does: "accuracy/top1", "accuracy/top5". Of equal scores the lower class counts as the larger. A
// sample whose scores hold a NaN is never right; compute() warns of such.
class Accuracy : public SummedMetric {
 public:
  explicit Accuracy(AccuracyOptions options = {});

  std::vector<std::string> names() const override;
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;
  MetricValues compute() const override;

 private:
  AccuracyOptions options_;
  ClassOptions inputs_;
  int64_t classes_ = 0;
};

// What a metric needs that follows from the confusion matrix: it is counted on the device, exactly, in int64. A sample
// whose scores hold a NaN is predicted as no class: it counts as its target's, and as wrong, with a warning.
class ClassMetric : public SummedMetric {
 public:
  void reset() override;
  void add(const Batch& batch, const NamedTensors& outputs, double weight) override;

 protected:
  // `who` begins messages. Throws ConfigError for options out of range.
  ClassMetric(std::string who, ClassOptions options);

  // Counts by target and prediction, float64 [classes, classes + 1] on the CPU: after the classes there is the
  // prediction "none". Undefined if nothing was added. Reads the device, and warns of samples without a prediction
  // once. Throws DataError if there were targets that are no class.
  at::Tensor matrix() const;
  int64_t num_classes() const { return options_.num_classes; }
  const std::vector<std::string>& class_names() const { return options_.class_names; }  // never empty

 private:
  std::string who_;
  ClassOptions options_;
  mutable bool warned_ = false;
};

struct ConfusionMatrixOptions {
  int64_t num_classes = 0;                 // required
  std::string normalize = "none";          // counts; or shares: of each target "true", each prediction "pred", of "all"
  bool flatten = false;                    // also report each cell as "confusion_<target>_<prediction>"
  int64_t ignore_index = -100;             // targets of this number do not count
  std::string target = "target";           // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";   // of the outputs: scores [N, classes, ...]
  std::vector<std::string> class_names{};  // empty: 0, 1, ...

  static const OptionFields& fields();
};

// Which classes are taken for which: a table for people, text(), a row per target. Of more than 20 classes the table
// lists the 20 most frequent confusions instead. It reports no number unless `flatten` is set, as a matrix is neither
// better nor worse than another.
class ConfusionMatrix : public ClassMetric {
 public:
  explicit ConfusionMatrix(ConfusionMatrixOptions options);

  std::vector<std::string> names() const override;
  // Cells that are shares of nothing are NaN.
  MetricValues compute() const override;
  std::string text() const override;

 private:
  // The counts, or the shares that `normalize` asks for.
  at::Tensor cells(const at::Tensor& counts) const;

  ConfusionMatrixOptions options_;
};

struct F1Options {
  int64_t num_classes = 0;                       // required
  std::vector<std::string> average = {"macro"};  // macro, micro, weighted; none: one value per class
  int64_t ignore_index = -100;                   // targets of this number do not count
  std::string target = "target";                 // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";         // of the outputs: scores [N, classes, ...]
  std::vector<std::string> class_names{};        // empty: 0, 1, ...

  static const OptionFields& fields();
};

// F1 of samples that belong to one class each: 2 TP / (2 TP + FP + FN), reported as "f1_macro", "f1_micro",
// "f1_weighted" and, for none, "f1_<class>". A class that occurs neither in targets nor in predictions has no value
// (NaN) and is left out of the averages, as scikit-learn and torchmetrics do. f1_micro equals the accuracy.
class F1 : public ClassMetric {
 public:
  explicit F1(F1Options options);

  std::vector<std::string> names() const override;
  MetricValues compute() const override;

 private:
  F1Options options_;
};

struct IoUMetricOptions {
  int64_t num_classes = 0;                          // required
  std::vector<std::string> iou_metrics = {"mIoU"};  // of mIoU, mDice, mFscore
  int64_t ignore_index = 255;                       // targets of this number do not count
  std::optional<double> nan_to_num{};               // takes the place of NaN; nothing: means leave NaN out
  double beta = 1;                                  // weight of the recall in mFscore
  bool per_class = false;                           // also IoU_<class> and its like
  std::string target = "target";                    // of the batch: class numbers [N, ...]
  std::string prediction = "prediction";            // of the outputs: scores [N, classes, ...]
  std::vector<std::string> class_names{};           // empty: 0, 1, ...

  static const OptionFields& fields();
};

// mmsegmentation's IoUMetric, in [0, 1] where that has per cent:
//   aAcc                        share of right pixels
//   mIoU   -> mIoU, mAcc        intersection over union; accuracy within each class (recall)
//   mDice  -> mDice, mAcc       2 |A and B| / (|A| + |B|)
//   mFscore -> mFscore, mPrecision, mRecall
// computed over the whole evaluation and then averaged over the classes that have a value. A class that occurs neither
// in targets nor in predictions has none. Unlike there, a class that is never right counts 0 in mFscore, as it does in
// mDice, instead of being left out.
class IoUMetric : public ClassMetric {
 public:
  explicit IoUMetric(IoUMetricOptions options);

  std::vector<std::string> names() const override;
  MetricValues compute() const override;
  // The values of each class.
  std::string text() const override;

 private:
  // "IoU" -> value of each class.
  std::map<std::string, at::Tensor> by_class(const at::Tensor& counts) const;
  std::vector<std::string> kinds() const;

  IoUMetricOptions options_;
};

}  // namespace duet
