#include "metrics/regression_metric.h"
#include <limits>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
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

RegressionMetric::RegressionMetric(RegressionOptions options) : options_(std::move(options)) {
  check_options(options_);
}

void RegressionMetric::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  const at::Tensor& prediction = metric_output("RegressionMetric", outputs, options_.prediction);
  const at::Tensor& target = batch[options_.target];
  if (prediction.numel() != target.numel()) {
    throw DataError(c10::str("[RegressionMetric] output '", options_.prediction, "' is ", prediction.sizes(),
                             ", target '", options_.target, "' ", target.sizes(),
                             ", expected as many numbers; set the model's num_classes to the targets of a sample"));
  }
  const at::Tensor wanted = target.to(at::kDouble).flatten();
  const at::Tensor error = prediction.detach().to(at::kDouble).flatten() - wanted;
  const at::Tensor count = at::full({}, static_cast<double>(wanted.numel()), wanted.options());
  const at::Tensor part =
      at::stack({count, (error * error).sum(), error.abs().sum(), wanted.sum(), (wanted * wanted).sum()});
  sums_ = sums_.defined() ? sums_ + part : part;
}

std::vector<at::Tensor> RegressionMetric::sums(at::Device device) {
  if (!sums_.defined()) sums_ = at::zeros({5}, at::TensorOptions(at::kDouble).device(device));
  return {sums_};
}

RegressionMetric::Sums RegressionMetric::read() const {
  if (!sums_.defined()) return {};
  const at::Tensor read = sums_.cpu();
  const double* values = read.const_data_ptr<double>();
  return {values[0], values[1], values[2], values[3], values[4]};
}

MetricValues MeanSquaredError::compute() const {
  const Sums sums = read();
  return sums.count == 0 ? MetricValues() : MetricValues{{"mse", sums.squared_errors / sums.count}};
}

MetricValues MeanAbsoluteError::compute() const {
  const Sums sums = read();
  return sums.count == 0 ? MetricValues() : MetricValues{{"mae", sums.absolute_errors / sums.count}};
}

MetricValues R2Score::compute() const {
  const Sums sums = read();
  if (sums.count == 0) return {};
  const double spread = sums.squared_targets - sums.targets * sums.targets / sums.count;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  return {{"r2", spread > 0 ? 1 - sums.squared_errors / spread : nan}};
}

}  // namespace duet
