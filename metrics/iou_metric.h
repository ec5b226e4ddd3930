#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include "../base/options.h"
#include "class_metric.h"

namespace duet {

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
  // Throws ConfigError naming the field and its range.
  void validate() const { check_options(*this); }
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
  // Throws ConfigError for options out of range.
  explicit IoUMetric(IoUMetricOptions options);

  std::vector<std::string> names() const override;
  MetricValues compute() const override;
  // The values of each class.
  std::string text() const override;

 private:
  // "IoU" -> value of each class.
  std::map<std::string, std::vector<double>> by_class(const Matrix& matrix) const;
  std::vector<std::string> kinds() const;

  IoUMetricOptions options_;
};

}  // namespace duet
