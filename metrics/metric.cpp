#include "metrics/metric.h"
#include <cmath>
#include <optional>
#include <utility>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "metrics/detail/class_fields.h"

namespace duet {

void WeightedMean::begin(at::Device device) {
  if (sum_.defined()) return;
  sum_ = at::zeros({}, at::TensorOptions(at::kDouble).device(device));
  weight_ = at::zeros({}, sum_.options());
}

void WeightedMean::reset() {
  sum_.reset();
  weight_.reset();
}

void WeightedMean::add(const char* who, const std::string& name, const at::Tensor& loss, double weight) {
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    throw DataError(c10::str("[", who, "] found '", name, "' ", loss.scalar_type(), " ", loss.sizes(),
                             ", expected one floating-point value; reduce it to its mean"));
  }
  if (!std::isfinite(weight) || weight < 0) {
    throw DataError(c10::str("[", who, "] found weight ", weight, ", expected 0 or more; correct Task::weight"));
  }
  // The sums are changed in place, which tensors made in inference mode do not allow later on.
  const c10::InferenceMode no_inference(false);
  const at::NoGradGuard no_grad;
  begin(loss.device());
  if (weight == 0) return;
  sum_.add_(loss.detach().reshape({}).to(at::kDouble), weight);
  weight_.add_(weight);
}

std::optional<double> WeightedMean::value() const {
  if (!sum_.defined()) return std::nullopt;
  const at::Tensor both = at::stack({sum_, weight_}).cpu();
  const double* values = both.const_data_ptr<double>();
  if (values[1] == 0) return std::nullopt;
  return values[0] / values[1];
}

std::vector<at::Tensor> WeightedMean::sums(at::Device device) {
  begin(device);
  return {sum_, weight_};
}

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

void MeanLoss::add(const Batch& /*batch*/, const NamedTensors& outputs, double weight) {
  mean_.add("MeanLoss", "loss", metric_output("MeanLoss", outputs, "loss"), weight);
}

MetricValues MeanLoss::compute() const {
  const std::optional<double> mean = mean_.value();
  if (!mean) return {};
  return {{"loss", *mean}};
}

Perplexity::Perplexity(std::string loss) : loss_(std::move(loss)) {}

void Perplexity::add(const Batch& /*batch*/, const NamedTensors& outputs, double weight) {
  mean_.add("Perplexity", loss_, metric_output("Perplexity", outputs, loss_), weight);
}

MetricValues Perplexity::compute() const {
  if (!mean_.started()) return {};
  return {{"perplexity", std::exp(mean_.value().value_or(std::nan("")))}};
}

}  // namespace duet
