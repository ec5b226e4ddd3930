#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/error.h"
#include "metrics/class_metric.h"
#include "metrics/detail/class_fields.h"

namespace duet {

// ClassMetric's own matrix is in class_metric.cpp; here is what follows from it: ConfusionMatrix, F1, IoUMetric.

namespace {

constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

double ratio(double part, double whole) { return whole == 0 ? kNaN : part / whole; }

// Of the values that are numbers.
double mean_of(const std::vector<double>& values) {
  double sum = 0, count = 0;
  for (const double value : values) {
    if (std::isnan(value)) continue;
    sum += value;
    ++count;
  }
  return ratio(sum, count);
}

// Rows of cells, the first one the header, in aligned columns: the first to the left, the others to the right.
std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string space(widths[i] - row[i].size(), ' ');
      line += (i == 0 ? "" : "  ") + (i == 0 ? row[i] + space : space + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

// 0.8125 as "0.8125", NaN as "nan".
std::string four_digits(double value) {
  if (std::isnan(value)) return "nan";
  char text[32];
  std::snprintf(text, sizeof(text), "%.4f", value);
  return text;
}

template <class Options>
ClassOptions class_options(const Options& o) {
  return {o.num_classes, o.ignore_index, o.target, o.prediction, o.class_names};
}

}  // namespace

const OptionFields& ConfusionMatrixOptions::fields() {
  using O = ConfusionMatrixOptions;
  return described<O>("ConfusionMatrix", [](const auto& add) {
    add_classes(add);
    add("normalize", &O::normalize, "shares of each target, of each prediction, or of all; none: counts")
        .one_of({"none", "true", "pred", "all"});
    add("flatten", &O::flatten, "also reports each cell");
  });
}

ConfusionMatrix::ConfusionMatrix(ConfusionMatrixOptions options)
    : ClassMetric("ConfusionMatrix", class_options(options)), options_(std::move(options)) {
  check_options(options_);
}

std::vector<std::string> ConfusionMatrix::names() const {
  std::vector<std::string> names;
  if (!options_.flatten) return names;
  for (const std::string& target : class_names()) {
    for (const std::string& prediction : class_names()) names.push_back("confusion_" + target + "_" + prediction);
  }
  return names;
}

double ConfusionMatrix::cell(const Matrix& matrix, int64_t target, int64_t prediction) const {
  const auto count = static_cast<double>(matrix.at(target, prediction));
  if (options_.normalize == "none") return count;
  const int64_t whole = options_.normalize == "true"   ? matrix.of_target(target)
                        : options_.normalize == "pred" ? matrix.of_prediction(prediction)
                                                       : matrix.total();
  return ratio(count, static_cast<double>(whole));
}

MetricValues ConfusionMatrix::compute() const {
  const Matrix matrix = this->matrix();
  MetricValues values;
  if (!options_.flatten || matrix.counts.empty()) return values;
  const std::vector<std::string> results = names();
  for (int64_t t = 0; t < num_classes(); ++t) {
    for (int64_t p = 0; p < num_classes(); ++p) values[results[t * num_classes() + p]] = cell(matrix, t, p);
  }
  return values;
}

std::string ConfusionMatrix::shown(const Matrix& matrix, int64_t target, int64_t prediction) const {
  if (options_.normalize == "none") return std::to_string(matrix.at(target, prediction));
  return four_digits(cell(matrix, target, prediction));
}

std::string ConfusionMatrix::text() const {
  const Matrix matrix = this->matrix();
  if (matrix.counts.empty()) return {};
  constexpr int64_t kWholeTable = 20;  // classes that fit side by side
  return num_classes() <= kWholeTable ? whole_table(matrix) : most_confused(matrix);
}

std::string ConfusionMatrix::whole_table(const Matrix& matrix) const {
  std::vector<std::vector<std::string>> rows = {{"target \\ predicted"}};
  for (const std::string& name : class_names()) rows[0].push_back(name);
  const bool some_unscored = matrix.of_none() > 0;
  if (some_unscored) rows[0].push_back("none");
  for (int64_t t = 0; t < num_classes(); ++t) {
    rows.push_back({class_names()[t]});
    for (int64_t p = 0; p < num_classes(); ++p) rows.back().push_back(shown(matrix, t, p));
    if (some_unscored) rows.back().push_back(shown(matrix, t, num_classes()));
  }
  return text_table(rows);
}

std::string ConfusionMatrix::most_confused(const Matrix& matrix) const {
  using Pair = std::pair<int64_t, int64_t>;
  std::vector<Pair> pairs;
  for (int64_t t = 0; t < num_classes(); ++t) {
    for (int64_t p = 0; p < num_classes(); ++p) {
      if (t != p && matrix.at(t, p) > 0) pairs.emplace_back(t, p);
    }
  }
  const auto count = std::min<std::size_t>(20, pairs.size());
  std::partial_sort(pairs.begin(), pairs.begin() + static_cast<std::ptrdiff_t>(count), pairs.end(),
                    [&](const Pair& a, const Pair& b) {
                      const int64_t left = matrix.at(a.first, a.second), right = matrix.at(b.first, b.second);
                      return left != right ? left > right : a < b;
                    });
  std::vector<std::vector<std::string>> rows = {{"target", "taken for", "count"}};
  for (std::size_t i = 0; i < count; ++i) {
    const auto [t, p] = pairs[i];
    rows.push_back({class_names()[t], class_names()[p], std::to_string(matrix.at(t, p))});
  }
  return text_table(rows);
}

namespace {

double weighted_mean(const std::vector<double>& values, const std::vector<double>& weights) {
  double sum = 0, count = 0;
  for (std::size_t c = 0; c < values.size(); ++c) {
    if (weights[c] == 0) continue;  // the value may be none
    sum += values[c] * weights[c];
    count += weights[c];
  }
  return ratio(sum, count);
}

}  // namespace

const OptionFields& F1Options::fields() {
  using O = F1Options;
  return described<O>("F1", [](const auto& add) {
    add_classes(add);
    add("average", &O::average, "over the classes; none: one value per class")
        .one_of({"macro", "micro", "weighted", "none"})
        .one_or_list();
    add.rule([](const O& o) {
      if (o.average.empty())
        throw ConfigError("[F1] found an empty average, expected macro, micro, weighted or none; name one");
      for (const std::string& name : o.average) {
        if (std::count(o.average.begin(), o.average.end(), name) == 1) continue;
        throw ConfigError("[F1] found average '" + name + "' twice, expected each once; remove one");
      }
    });
  });
}

F1::F1(F1Options options) : ClassMetric("F1", class_options(options)), options_(std::move(options)) {
  check_options(options_);
}

std::vector<std::string> F1::names() const {
  std::vector<std::string> names;
  for (const std::string& average : options_.average) {
    if (average != "none") {
      names.push_back("f1_" + average);
      continue;
    }
    for (const std::string& name : class_names()) names.push_back("f1_" + name);
  }
  return names;
}

MetricValues F1::compute() const {
  const Matrix matrix = this->matrix();
  if (matrix.counts.empty()) return {};
  std::vector<double> scores, targets;
  for (int64_t c = 0; c < num_classes(); ++c) {
    targets.push_back(static_cast<double>(matrix.of_target(c)));
    const auto predicted = static_cast<double>(matrix.of_prediction(c));
    scores.push_back(ratio(2 * static_cast<double>(matrix.at(c, c)), targets.back() + predicted));
  }
  MetricValues values;
  for (const std::string& average : options_.average) {
    if (average == "macro") values["f1_macro"] = mean_of(scores);
    if (average == "weighted") values["f1_weighted"] = weighted_mean(scores, targets);
    // Every wrong sample is one false positive and one false negative.
    if (average == "micro") {
      values["f1_micro"] = ratio(static_cast<double>(matrix.correct()), static_cast<double>(matrix.total()));
    }
    if (average != "none") continue;
    for (int64_t c = 0; c < num_classes(); ++c) values["f1_" + class_names()[c]] = scores[c];
  }
  return values;
}

const OptionFields& IoUMetricOptions::fields() {
  using O = IoUMetricOptions;
  return described<O>("IoUMetric", [](const auto& add) {
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
}

IoUMetric::IoUMetric(IoUMetricOptions options)
    : ClassMetric("IoUMetric", class_options(options)), options_(std::move(options)) {
  check_options(options_);
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
