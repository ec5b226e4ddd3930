#include "metrics/confusion_matrix.h"
#include <algorithm>
#include <limits>
#include <utility>
#include "base/detail/nearest.h"
#include "base/error.h"
#include "metrics/detail/class_fields.h"
#include "metrics/detail/text_table.h"

namespace duet {

namespace {

constexpr int64_t kWholeTable = 20;  // classes that fit side by side
constexpr std::size_t kPairs = 20;

}  // namespace

const OptionFields& ConfusionMatrixOptions::fields() {
  using O = ConfusionMatrixOptions;
  static const OptionFields kFields = OptionFields::of<O>("ConfusionMatrix", [](const FieldAdder<O>& add) {
    add_classes(add);
    add("normalize", &O::normalize, "shares of each target, of each prediction, or of all; none: counts")
        .one_of({"none", "true", "pred", "all"});
    add("flatten", &O::flatten, "also reports each cell");
  });
  return kFields;
}

ConfusionMatrix::ConfusionMatrix(ConfusionMatrixOptions options)
    : ClassMetric("ConfusionMatrix",
                  {options.num_classes, options.ignore_index, options.target, options.prediction, options.class_names}),
      options_(std::move(options)) {
  options_.validate();
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
  return whole == 0 ? std::numeric_limits<double>::quiet_NaN() : count / static_cast<double>(whole);
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
  const std::size_t count = std::min(kPairs, pairs.size());
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

}  // namespace duet
