#include "metrics/metric.h"
#include <cmath>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "metrics/detail/class_fields.h"

namespace duet {

const at::Tensor& metric_output(const std::string& who, const NamedTensors& outputs, const std::string& name) {
  std::string known;
  for (const auto& [key, tensor] : outputs) {
    if (key == name && tensor.defined()) return tensor;
    known += (known.empty() ? "" : ", ") + key;
  }
  throw DataError(c10::str("[", who, "] found outputs ", known.empty() ? "none" : known, ", expected '", name,
                           "' among them; return it from Task::validation_step"));
}

std::vector<at::Tensor> Metric::sums(at::Device /*device*/) {
  throw ConfigError(
      "[Metric] found a metric without sums(), expected one that can be added up over ranks; override sums(), or "
      "evaluate in one process");
}

void MeanLoss::begin(at::Device device) {
  if (sum_.defined()) return;
  sum_ = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  weight_ = at::zeros({}, sum_.options());
}

void MeanLoss::reset() {
  sum_.reset();
  weight_.reset();
}

void MeanLoss::add(const Batch& /*batch*/, const NamedTensors& outputs, double weight) {
  const at::Tensor& loss = metric_output(who_, outputs, loss_);
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    throw DataError(c10::str("[", who_, "] found '", loss_, "' ", loss.scalar_type(), " ", loss.sizes(),
                             ", expected one floating-point value; reduce it to its mean"));
  }
  if (!std::isfinite(weight) || weight < 0) {
    throw DataError(c10::str("[", who_, "] found weight ", weight, ", expected 0 or more; correct Task::weight"));
  }
  // The sums are changed in place, which tensors made in inference mode do not allow later on.
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  begin(loss.device());
  if (weight == 0) return;
  sum_.add_(loss.detach().reshape({}).to(at::kDouble), weight);
  weight_.add_(weight);
}

std::optional<double> MeanLoss::mean() const {
  if (!sum_.defined()) return std::nullopt;
  const at::Tensor both = at::stack({sum_, weight_}).cpu();
  const double* values = both.const_data_ptr<double>();
  if (values[1] == 0) return std::nullopt;
  return values[0] / values[1];
}

MetricValues MeanLoss::compute() const {
  const std::optional<double> value = mean();
  if (!value) return {};
  return {{"loss", *value}};
}

std::vector<at::Tensor> MeanLoss::sums(at::Device device) {
  begin(device);
  return {sum_, weight_};
}

MetricValues Perplexity::compute() const {
  if (!started()) return {};
  return {{"perplexity", std::exp(mean().value_or(std::nan("")))}};
}

}  // namespace duet
