#include "metrics/probability_metric.h"
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/one_hot.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "metrics/detail/class_fields.h"

namespace duet {

namespace {

struct Scored {
  at::Tensor scores;   // float64 [N, classes], of one class [N, 1]
  at::Tensor targets;  // [N], or as the scores if the metric takes several labels of a sample
};

// `who` begins messages; `Options` names the tensors; kTakesLabels: several of a sample, too.
template <bool kTakesLabels, class Options>
Scored scored(const std::string& who, const Options& options, const Batch& batch, const NamedTensors& outputs) {
  at::Tensor scores = metric_output(who, outputs, options.prediction).detach();
  const at::Tensor& targets = batch[options.target];
  if (scores.dim() == 1) scores = scores.unsqueeze(1);
  if (scores.dim() == 2 && targets.numel() == scores.size(0)) return {scores.to(at::kDouble), targets.flatten()};
  if (kTakesLabels && scores.dim() == 2 && targets.sizes() == scores.sizes()) return {scores.to(at::kDouble), targets};
  throw DataError(c10::str("[", who, "] output '", options.prediction, "' is ", scores.sizes(), ", target '",
                           options.target, "' ", targets.sizes(),
                           ", expected scores [N, classes] or [N] and as many class numbers",
                           kTakesLabels ? ", or 0 and 1 [N, classes]" : "", "; set prediction and target"));
}

}  // namespace

const OptionFields& RankingOptions::fields() {
  using O = RankingOptions;
  return described<O>("RankingMetric", [](const auto& add) {
    add.about(
        "Reads prediction float [N, classes] or [N] (num_classes: 1), target int64 [N], or 0 and 1 [N, classes] for "
        "several labels per sample.");
    add("num_classes", &O::num_classes, "classes of the scores; 1: one score, of class 1 against 0").in(at_least(1));
    add("target", &O::target, "tensor of the batch: class numbers [N], or 0 and 1 of each class [N, classes]");
    add("prediction", &O::prediction, "output that holds the scores [N, classes]");
  });
}

RankingMetric::RankingMetric(RankingOptions options) : options_(std::move(options)) {
  check_options(options_);
  reset();
}

void RankingMetric::reset() {
  scores_ = {at::empty({0, options_.num_classes}, at::kDouble)};
  positives_ = {at::empty({0, options_.num_classes}, at::kBool)};
}

void RankingMetric::join() const {
  if (scores_.size() == 1) return;
  scores_ = {at::cat(scores_)};
  positives_ = {at::cat(positives_)};
}

std::vector<at::Tensor*> RankingMetric::rows() {
  join();
  return {&scores_.front(), &positives_.front()};
}

at::Tensor RankingMetric::positives_of(const at::Tensor& targets) const {
  const bool is_of_labels = targets.dim() == 2;
  const int64_t classes = options_.num_classes, end = is_of_labels ? 2 : std::max<int64_t>(classes, 2);
  const at::Tensor read = targets.cpu(), numbers = read.to(at::kLong);
  if (numbers.numel() > 0 && (numbers.min().item<int64_t>() < 0 || numbers.max().item<int64_t>() >= end ||
                              numbers.ne(read).any().item<bool>())) {
    throw DataError(c10::str("[RankingMetric] target '", options_.target, "' has ", is_of_labels ? "labels" : "classes",
                             " from ", read.min().item<double>(), " to ", read.max().item<double>(),
                             ", expected whole numbers from 0 to ", end - 1, "; ",
                             is_of_labels ? "correct the labels" : "set num_classes"));
  }
  if (is_of_labels) return numbers.to(at::kBool);
  return classes == 1 ? numbers.eq(1).unsqueeze(1) : at::one_hot(numbers, classes).to(at::kBool);
}

void RankingMetric::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  auto [scores, targets] = scored<true>("RankingMetric", options_, batch, outputs);
  const int64_t classes = options_.num_classes;
  if (scores.size(1) != classes) {
    throw DataError(c10::str("[RankingMetric] output '", options_.prediction, "' has ", scores.size(1),
                             " scores per sample, expected ", classes, "; set num_classes to ", scores.size(1)));
  }
  if (classes > 1 && targets.dim() == 1) scores = at::softmax(scores, 1);
  positives_.push_back(positives_of(targets));
  scores_.push_back(scores.cpu().clone());  // a replayed evaluation writes to the same memory again
}

std::vector<RankingMetric::Group> RankingMetric::groups_of(int64_t column) const {
  const at::Tensor own_scores = scores_.front().select(1, column).contiguous(),
                   own_positives = positives_.front().select(1, column).contiguous();
  const double* scores = own_scores.const_data_ptr<double>();
  const bool* is_positive = own_positives.const_data_ptr<bool>();
  std::vector<int64_t> order(static_cast<std::size_t>(own_scores.numel()));
  std::iota(order.begin(), order.end(), int64_t{0});
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return scores[a] > scores[b]; });
  std::vector<Group> groups;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || scores[order[i]] != scores[order[i - 1]]) groups.emplace_back();
    (is_positive[order[i]] ? groups.back().positives : groups.back().negatives) += 1;
  }
  return groups;
}

MetricValues RankingMetric::mean_over_classes(const std::string& name,
                                              double (*figure)(const std::vector<Group>&)) const {
  join();
  if (scores_.front().numel() == 0) return {};
  const double nan = std::numeric_limits<double>::quiet_NaN();
  if (scores_.front().isnan().any().item<bool>()) return {{name, nan}};
  double sum = 0, count = 0;
  for (int64_t column = 0; column < options_.num_classes; ++column) {
    const std::vector<Group> groups = groups_of(column);
    Group all;
    for (const Group& group : groups) all.positives += group.positives, all.negatives += group.negatives;
    if (all.positives == 0 || all.negatives == 0) continue;
    sum += figure(groups);
    ++count;
  }
  return {{name, count == 0 ? nan : sum / count}};
}

MetricValues Auroc::compute() const {
  return mean_over_classes("auroc", [](const std::vector<Group>& groups) {
    double positives = 0, negatives = 0, above = 0;
    for (const Group& group : groups) {
      above += group.negatives * (positives + group.positives / 2);
      positives += group.positives;
      negatives += group.negatives;
    }
    return above / (positives * negatives);
  });
}

MetricValues AveragePrecision::compute() const {
  return mean_over_classes("map", [](const std::vector<Group>& groups) {
    double positives = 0, taken = 0, sum = 0;
    for (const Group& group : groups) {
      positives += group.positives;
      taken += group.positives + group.negatives;
      sum += group.positives * (positives / taken);
    }
    return sum / positives;
  });
}

const OptionFields& CalibrationErrorOptions::fields() {
  using O = CalibrationErrorOptions;
  return described<O>("CalibrationError", [](const auto& add) {
    add.about("Reads prediction (logits [N, classes], or [N] of class 1), target int64 [N].");
    add("bins", &O::bins, "bins of confidence, of equal width").in(between(1, 10000));
    add("target", &O::target, "tensor of the batch: class numbers [N]");
    add("prediction", &O::prediction, "output that holds the scores [N, classes]");
  });
}

CalibrationError::CalibrationError(CalibrationErrorOptions options)
    // By bin: samples, their confidence, those that are right, those of no class.
    : SummedMetric({4, options.bins}, at::kDouble), options_(std::move(options)) {
  check_options(options_);
}

void CalibrationError::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  auto [logits, targets] = scored<false>("CalibrationError", options_, batch, outputs);
  if (logits.size(1) == 1)
    logits = at::cat({at::zeros_like(logits), logits}, 1);  // two classes whose softmax is its sigmoid
  const auto [confidence, chosen] = at::softmax(logits, 1).max(1);
  // What is NaN lands in the first bin, and makes the result NaN.
  const at::Tensor place = (confidence * options_.bins).ceil().sub(1).nan_to_num(0);
  const at::Tensor bin = place.clamp(0, options_.bins - 1).to(at::kLong);
  classes_ = logits.size(1);
  const at::Tensor numbers = targets.to(at::kLong);
  const at::Tensor is_class = numbers.ge(0).logical_and(numbers.lt(classes_)).logical_and(numbers.eq(targets));
  const at::Tensor each = at::stack({at::ones_like(confidence), confidence, chosen.eq(numbers).to(at::kDouble),
                                     is_class.logical_not().to(at::kDouble)});
  at::Tensor& sums = begin(each.device());
  sums = sums + at::zeros_like(sums).index_add(1, bin, each);
}

MetricValues CalibrationError::compute() const {
  if (!started()) return {};
  const at::Tensor host = read();
  const double* count = host.const_data_ptr<double>();
  const double *confidence = count + options_.bins, *right = confidence + options_.bins, *bad = right + options_.bins;
  check_class_numbers("CalibrationError", options_.target, std::accumulate(bad, bad + options_.bins, 0.0), classes_,
                      "; correct the labels");
  double distance = 0, total = 0;
  for (int64_t bin = 0; bin < options_.bins; ++bin) {
    distance += std::abs(confidence[bin] - right[bin]);
    total += count[bin];
  }
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {{"calibration_error", total == 0 ? nan : distance / total}};
}

}  // namespace duet
