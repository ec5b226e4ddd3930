#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>
#include <ATen/TensorOperators.h>
#include "base/error.h"
#include "metrics/class_metric.h"
#include "metrics/detail/class_fields.h"

namespace duet {

// ClassMetric's own matrix is in class_metric.cpp; here is what follows from it: ConfusionMatrix, F1, IoUMetric.

namespace {

// Of a matrix of counts, by class. Where there is nothing to divide by a quotient of them is NaN.
struct ClassSums {
  explicit ClassSums(const at::Tensor& counts)
      : right(counts.diagonal()), targets(counts.sum(1)), predicted(counts.sum(0).narrow(0, 0, counts.size(0))) {}

  double accuracy() const { return (right.sum() / targets.sum()).item<double>(); }

  at::Tensor right, targets, predicted;
};

double number(const at::Tensor& values, int64_t index) { return values[index].item<double>(); }

using Rows = std::vector<std::vector<std::string>>;

// Of the values that are numbers.
double mean_of(const at::Tensor& values) { return values.nanmean().item<double>(); }

// Rows of cells, the first one the header, in aligned columns: the first to the left, the others to the right.
std::string text_table(const Rows& rows) {
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

// 0.8125 as "0.8125", NaN as "nan"; a count without digits.
std::string shown(double value, int digits = 4) {
  if (std::isnan(value)) return "nan";
  char text[32];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

template <class Options>
ClassOptions class_options(const Options& o) {
  return {o.num_classes, o.ignore_index, o.target, o.prediction, o.class_names};
}

Rows most_confused(const at::Tensor& counts, const std::vector<std::string>& names) {
  constexpr std::size_t kMost = 20;
  const at::Tensor wrong = counts.narrow(1, 0, counts.size(0)).clone();
  wrong.diagonal().zero_();
  const auto [most, places] = wrong.flatten().sort(/*stable=*/true, /*dim=*/0, /*descending=*/true);
  Rows rows = {{"target", "taken for", "count"}};
  for (int64_t i = 0; rows.size() <= kMost && number(most, i) > 0; ++i) {
    const auto place = places[i].item<int64_t>(), classes = counts.size(0);
    rows.push_back({names[place / classes], names[place % classes], shown(number(most, i), 0)});
  }
  return rows;
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

at::Tensor ConfusionMatrix::cells(const at::Tensor& counts) const {
  if (options_.normalize == "true") return counts / counts.sum(1, /*keepdim=*/true);
  if (options_.normalize == "pred") return counts / counts.sum(0, /*keepdim=*/true);
  return options_.normalize == "all" ? counts / counts.sum() : counts;
}

MetricValues ConfusionMatrix::compute() const {
  const at::Tensor counts = matrix();
  MetricValues values;
  if (!options_.flatten || !counts.defined()) return values;
  const at::Tensor flat = cells(counts).narrow(1, 0, num_classes()).flatten();
  int64_t place = 0;
  for (const std::string& name : names()) values[name] = number(flat, place++);
  return values;
}

std::string ConfusionMatrix::text() const {
  constexpr int64_t kWholeTable = 20;  // classes that fit side by side
  const at::Tensor counts = matrix();
  if (!counts.defined()) return {};
  if (num_classes() > kWholeTable) return text_table(most_confused(counts, class_names()));
  std::vector<std::string> names = class_names();
  const bool some_unscored = counts.select(1, num_classes()).any().item<bool>();
  if (some_unscored) names.push_back("none");
  Rows rows = {{"target \\ predicted"}};
  rows[0].insert(rows[0].end(), names.begin(), names.end());
  const at::Tensor cells = this->cells(counts);
  for (int64_t t = 0; t < num_classes(); ++t) {
    rows.push_back({names[t]});
    for (int64_t p = 0; p < std::ssize(names); ++p) {
      rows.back().push_back(shown(number(cells[t], p), options_.normalize == "none" ? 0 : 4));
    }
  }
  return text_table(rows);
}

const OptionFields& F1Options::fields() {
  using O = F1Options;
  return described<O>("F1", [](const auto& add) {
    add_classes(add);
    add("average", &O::average, "over the classes; none: one value per class")
        .one_of({"macro", "micro", "weighted", "none"})
        .one_or_list();
    add.rule([](const O& o) { check_each_once("F1", "average", o.average); });
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
  const at::Tensor counts = matrix();
  if (!counts.defined()) return {};
  const ClassSums sums(counts);
  const at::Tensor scores = 2 * sums.right / (sums.targets + sums.predicted);
  const at::Tensor weighted = (scores * sums.targets).nansum() / sums.targets.sum();  // NaN: of a class without weight
  MetricValues values;
  for (const std::string& average : options_.average) {
    if (average == "macro") values["f1_macro"] = mean_of(scores);
    if (average == "weighted") values["f1_weighted"] = weighted.item<double>();
    // Every wrong sample is one false positive and one false negative.
    if (average == "micro") values["f1_micro"] = sums.accuracy();
    if (average != "none") continue;
    for (int64_t c = 0; c < num_classes(); ++c) values["f1_" + class_names()[c]] = number(scores, c);
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

std::map<std::string, at::Tensor> IoUMetric::by_class(const at::Tensor& counts) const {
  const ClassSums sums(counts);
  const auto& [right, targets, predicted] = sums;
  const double beta2 = options_.beta * options_.beta;
  std::map<std::string, at::Tensor> values = {
      {"IoU", right / (targets + predicted - right)},
      {"Acc", right / targets},
      {"Dice", 2 * right / (targets + predicted)},
      {"Fscore", (1 + beta2) * right / (beta2 * targets + predicted)},
      {"Precision", right / predicted},
      {"Recall", right / targets},
      {"aAcc", right.sum() / targets.sum()},
  };
  if (!options_.nan_to_num) return values;
  for (auto& item : values) item.second.masked_fill_(item.second.isnan(), *options_.nan_to_num);
  return values;
}

MetricValues IoUMetric::compute() const {
  const at::Tensor counts = matrix();
  if (!counts.defined()) return {};
  const auto values = by_class(counts);
  MetricValues results = {{"aAcc", values.at("aAcc").item<double>()}};
  for (const std::string& kind : kinds()) {
    results["m" + kind] = mean_of(values.at(kind));
    if (!options_.per_class) continue;
    for (int64_t c = 0; c < num_classes(); ++c) results[kind + "_" + class_names()[c]] = number(values.at(kind), c);
  }
  return results;
}

std::string IoUMetric::text() const {
  const at::Tensor counts = matrix();
  if (!counts.defined()) return {};
  const auto values = by_class(counts);
  Rows rows = {{"class"}};
  for (const std::string& kind : kinds()) rows[0].push_back(kind);
  for (int64_t c = 0; c < num_classes(); ++c) {
    rows.push_back({class_names()[c]});
    for (const std::string& kind : kinds()) rows.back().push_back(shown(number(values.at(kind), c)));
  }
  return text_table(rows);
}

}  // namespace duet
