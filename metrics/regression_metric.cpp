#include "metrics/regression_metric.h"
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/stack.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "metrics/detail/class_fields.h"

namespace duet {

const OptionFields& RegressionOptions::fields() {
  using O = RegressionOptions;
  return described<O>("RegressionMetric", [](const auto& add) {
    add.about("Reads prediction and target, float, of equal numbers of values.");
    add("target", &O::target, "tensor of the batch that holds the true numbers");
    add("prediction", &O::prediction, "output that holds the predicted numbers");
  });
}

namespace {

// Of one micro-batch, in float64: a row for each sample, a column for each of its numbers.
struct Numbers {
  at::Tensor prediction, target;  // [N, outputs]
};

// `who` begins messages.
Numbers numbers_of(const std::string& who, const RegressionOptions& options, const Batch& batch,
                   const NamedTensors& outputs) {
  const at::Tensor& prediction = metric_output(who, outputs, options.prediction);
  const at::Tensor& target = batch[options.target];
  const int64_t samples = target.dim() == 0 ? 1 : target.size(0);
  const bool as_many_samples = (prediction.dim() == 0 ? 1 : prediction.size(0)) == samples;
  if (prediction.numel() != target.numel() || !as_many_samples) {
    throw DataError(c10::str("[", who, "] output '", options.prediction, "' is ", prediction.sizes(), ", target '",
                             options.target, "' ", target.sizes(),
                             ", expected as many numbers for each sample; set the model's num_classes to the targets "
                             "of a sample"));
  }
  const int64_t columns = samples == 0 ? 1 : target.numel() / samples;
  const auto as_rows = [&](const at::Tensor& tensor) {
    return tensor.detach().to(at::kDouble).reshape({samples, columns});
  };
  return {as_rows(prediction), as_rows(target)};
}

at::Tensor squared(const at::Tensor& difference) { return difference * difference; }
at::Tensor absolute(const at::Tensor& difference) { return difference.abs(); }

}  // namespace

RegressionMetric::RegressionMetric(std::string name, at::Tensor (*error_of)(const at::Tensor&),
                                   RegressionOptions options)
    : SummedMetric({2}, at::kDouble),  // values, their errors
      name_(std::move(name)),
      error_of_(error_of),
      options_(std::move(options)) {
  check_options(options_);
}

MeanSquaredError::MeanSquaredError(RegressionOptions options) : RegressionMetric("mse", squared, std::move(options)) {}
MeanAbsoluteError::MeanAbsoluteError(RegressionOptions options)
    : RegressionMetric("mae", absolute, std::move(options)) {}

void RegressionMetric::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  const Numbers numbers = numbers_of("RegressionMetric", options_, batch, outputs);
  const at::Tensor errors = error_of_(numbers.prediction - numbers.target);
  const at::Tensor count = at::full({}, static_cast<double>(errors.numel()), errors.options());
  at::Tensor& sums = begin(errors.device());
  sums = sums + at::stack({count, errors.sum()});
}

MetricValues RegressionMetric::compute() const {
  if (!started()) return {};
  const at::Tensor host = read();
  const double* values = host.const_data_ptr<double>();
  return values[0] == 0 ? MetricValues() : MetricValues{{name_, values[1] / values[0]}};
}

namespace {

// What R2 needs of each output: a row of these.
enum Moment { kOutput, kCount, kMean, kSpread, kErrors };  // kSpread: sum of squared distances from the mean

// Distances from the first sample keep the digits of targets far from 0, and are all 0 of targets that are alike.
at::Tensor moments_of(const Numbers& numbers) {
  const at::Tensor first = numbers.target[0], distance = numbers.target - first, mean = distance.mean(0);
  const at::Tensor count = at::full_like(mean, static_cast<double>(numbers.target.size(0)));
  return at::stack({at::arange(mean.numel(), mean.options()), count, first + mean, squared(distance - mean).sum(0),
                    squared(numbers.prediction - numbers.target).sum(0)},
                   1);
}

// Of the samples of both (Chan et al. 1983).
at::Tensor merged(const at::Tensor& one, const at::Tensor& other) {
  const auto sum = [&](Moment moment) { return one.select(1, moment) + other.select(1, moment); };
  const at::Tensor count = sum(kCount), share = other.select(1, kCount) / count;
  const at::Tensor distance = other.select(1, kMean) - one.select(1, kMean);
  return at::stack({one.select(1, kOutput), count, one.select(1, kMean) + distance * share,
                    sum(kSpread) + squared(distance) * one.select(1, kCount) * share, sum(kErrors)},
                   1);
}

}  // namespace

R2Score::R2Score(RegressionOptions options) : options_(std::move(options)) { check_options(options_); }

void R2Score::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  const Numbers numbers = numbers_of("R2Score", options_, batch, outputs);
  if (numbers.target.numel() == 0) return;
  if (moments_.defined() && moments_.size(0) != numbers.target.size(1)) {
    throw DataError(c10::str("[R2Score] target '", options_.target, "' has ", numbers.target.size(1),
                             " numbers per sample, ", moments_.size(0),
                             " in batches before, expected as many in all; give samples of one size"));
  }
  const at::Tensor part = moments_of(numbers);
  moments_ = moments_.defined() ? merged(moments_, part) : part;
}

std::vector<at::Tensor*> R2Score::rows() {
  moments_ = moments_.defined() ? moments_.cpu().contiguous() : at::empty({0, kErrors + 1}, at::kDouble);
  return {&moments_};
}

MetricValues R2Score::compute() const {
  if (!moments_.defined() || moments_.size(0) == 0) return {};
  const at::Tensor read = moments_.cpu();
  const auto outputs = static_cast<int64_t>(read.select(1, kOutput).max().item<double>()) + 1;
  at::Tensor all;
  for (const at::Tensor& of_rank : read.split(outputs)) all = all.defined() ? merged(all, of_rank) : of_rank;
  const at::Tensor spread = all.select(1, kSpread), r2 = 1 - all.select(1, kErrors) / spread;
  return {{"r2", r2.masked_select(spread.ne(0)).mean().item<double>()}};
}

}  // namespace duet
