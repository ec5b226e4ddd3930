#include "metrics/iou_metric.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/nearest.h"
#include "base/error.h"
#include "metrics/detail/class_fields.h"
#include "metrics/detail/text_table.h"

namespace duet {

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole) { return whole == 0 ? kNaN : part / whole; }

// Over the classes that have a value.
double mean_of(const std::vector<double>& values) {
  double sum = 0;
  int64_t count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return count == 0 ? kNaN : sum / static_cast<double>(count);
}

}  // namespace

const OptionFields& IoUMetricOptions::fields() {
  using O = IoUMetricOptions;
  static const OptionFields kFields = OptionFields::of<O>("IoUMetric", [](const FieldAdder<O>& add) {
    add_classes(add);
    add("iou_metrics", &O::iou_metrics, "what is reported").one_of({"mIoU", "mDice", "mFscore"}).one_or_list();
    add("nan_to_num", &O::nan_to_num, "takes the place of NaN; nothing: means leave NaN out").in(Range().or_infinity());
    add("beta", &O::beta, "weight of the recall in mFscore").in(above(0));
    add("per_class", &O::per_class, "also the values of each class");
    add.rule([](const O& o) {
      require<ConfigError>(!o.iou_metrics.empty(),
                           "[IoUMetric] found no iou_metrics, expected some of mIoU, mDice, mFscore; name one");
    });
  });
  return kFields;
}

IoUMetric::IoUMetric(IoUMetricOptions options)
    : ClassMetric("IoUMetric",
                  {options.num_classes, options.ignore_index, options.target, options.prediction, options.class_names}),
      options_(std::move(options)) {
  options_.validate();
}

// What there is of each class, in the order of mmsegmentation, each once.
std::vector<std::string> IoUMetric::kinds() const {
  static const std::map<std::string, std::vector<std::string>> kKinds = {
      {"mIoU", {"IoU", "Acc"}}, {"mDice", {"Dice", "Acc"}}, {"mFscore", {"Fscore", "Precision", "Recall"}}};
  std::vector<std::string> kinds;
  for (const std::string& metric : options_.iou_metrics) {
    for (const std::string& kind : kKinds.at(metric)) {
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
  }
  return kinds;
}

std::vector<std::string> IoUMetric::names() const {
  std::vector<std::string> names = {"aAcc"};
  for (const std::string& kind : kinds()) names.push_back("m" + kind);
  if (!options_.per_class) return names;
  for (const std::string& kind : kinds()) {
    for (const std::string& name : class_names()) names.push_back(kind + "_" + name);
  }
  return names;
}

std::map<std::string, std::vector<double>> IoUMetric::by_class(const Matrix& matrix) const {
  std::map<std::string, std::vector<double>> values;
  const double beta2 = options_.beta * options_.beta;
  for (int64_t c = 0; c < num_classes(); ++c) {
    const auto both = static_cast<double>(matrix.at(c, c));
    const auto target = static_cast<double>(matrix.of_target(c));
    const auto predicted = static_cast<double>(matrix.of_prediction(c));
    values["IoU"].push_back(ratio(both, target + predicted - both));
    values["Acc"].push_back(ratio(both, target));
    values["Dice"].push_back(ratio(2 * both, target + predicted));
    values["Fscore"].push_back(ratio((1 + beta2) * both, beta2 * target + predicted));
    values["Precision"].push_back(ratio(both, predicted));
    values["Recall"].push_back(ratio(both, target));
  }
  if (!options_.nan_to_num) return values;
  for (auto& [kind, list] : values) {
    std::replace_if(list.begin(), list.end(), [](double v) { return std::isnan(v); }, *options_.nan_to_num);
  }
  return values;
}

MetricValues IoUMetric::compute() const {
  const Matrix matrix = this->matrix();
  if (matrix.counts.empty()) return {};
  double all = ratio(static_cast<double>(matrix.correct()), static_cast<double>(matrix.total()));
  if (std::isnan(all) && options_.nan_to_num) all = *options_.nan_to_num;
  MetricValues results = {{"aAcc", all}};
  const auto values = by_class(matrix);
  for (const std::string& kind : kinds()) {
    results["m" + kind] = mean_of(values.at(kind));
    if (!options_.per_class) continue;
    for (int64_t c = 0; c < num_classes(); ++c) results[kind + "_" + class_names()[c]] = values.at(kind)[c];
  }
  return results;
}

std::string IoUMetric::text() const {
  const Matrix matrix = this->matrix();
  if (matrix.counts.empty()) return {};
  const auto values = by_class(matrix);
  std::vector<std::vector<std::string>> rows = {{"class"}};
  for (const std::string& kind : kinds()) rows[0].push_back(kind);
  for (int64_t c = 0; c < num_classes(); ++c) {
    rows.push_back({class_names()[c]});
    for (const std::string& kind : kinds()) rows.back().push_back(four_digits(values.at(kind)[c]));
  }
  return text_table(rows);
}

}  // namespace duet
