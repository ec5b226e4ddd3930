#include "metrics/f1.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include "base/detail/nearest.h"
#include "base/error.h"
#include "metrics/detail/class_fields.h"

namespace duet {

namespace {

double ratio(double part, double whole) { return whole == 0 ? std::numeric_limits<double>::quiet_NaN() : part / whole; }

struct Share {
  double f1, support;
};

// The mean of the classes that have a value.
double macro(const std::vector<Share>& classes) {
  double sum = 0, count = 0;
  for (const Share& one : classes) {
    if (std::isnan(one.f1)) continue;
    sum += one.f1;
    ++count;
  }
  return ratio(sum, count);
}

double weighted(const std::vector<Share>& classes) {
  double sum = 0, count = 0;
  for (const Share& one : classes) {
    if (one.support == 0) continue;
    sum += one.f1 * one.support;
    count += one.support;
  }
  return ratio(sum, count);
}

}  // namespace

const OptionFields& F1Options::fields() {
  using O = F1Options;
  static const OptionFields kFields = OptionFields::of<O>("F1", [](const FieldAdder<O>& add) {
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
  return kFields;
}

F1::F1(F1Options options)
    : ClassMetric("F1",
                  {options.num_classes, options.ignore_index, options.target, options.prediction, options.class_names}),
      options_(std::move(options)) {
  options_.validate();
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
  std::vector<Share> classes;
  for (int64_t c = 0; c < num_classes(); ++c) {
    const auto target = static_cast<double>(matrix.of_target(c));
    const auto predicted = static_cast<double>(matrix.of_prediction(c));
    classes.push_back({ratio(2 * static_cast<double>(matrix.at(c, c)), target + predicted), target});
  }
  MetricValues values;
  for (const std::string& average : options_.average) {
    if (average == "macro") values["f1_macro"] = macro(classes);
    if (average == "weighted") values["f1_weighted"] = weighted(classes);
    // Every wrong sample is one false positive and one false negative.
    if (average == "micro") {
      values["f1_micro"] = ratio(static_cast<double>(matrix.correct()), static_cast<double>(matrix.total()));
    }
    if (average != "none") continue;
    for (int64_t c = 0; c < num_classes(); ++c) values["f1_" + class_names()[c]] = classes[c].f1;
  }
  return values;
}

}  // namespace duet
