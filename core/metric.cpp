#include <duet/core/metric.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/eq.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>

#include <cmath>
#include <utility>

namespace duet {

namespace {

const at::Tensor& output(const char* who, const NamedTensors& outputs, const std::string& name) {
  std::string known;
  for (const auto& [key, tensor] : outputs) {
    if (key == name && tensor.defined()) return tensor;
    known += (known.empty() ? "" : ", ") + key;
  }
  throw DataError(c10::str("[", who, "] found outputs ", known.empty() ? "none" : known, ", expected '", name,
                           "' among them; return it from Task::validation_step"));
}

}  // namespace

void MeanLoss::reset() {
  sum_.reset();
  weight_ = 0;
}

void MeanLoss::add(const Batch& /*batch*/, const NamedTensors& outputs, double weight) {
  const at::Tensor& loss = output("MeanLoss", outputs, "loss");
  if (loss.numel() != 1 || !loss.is_floating_point()) {
    throw DataError(c10::str("[MeanLoss] found 'loss' ", loss.scalar_type(), " ", loss.sizes(),
                             ", expected one floating-point value; reduce it to its mean"));
  }
  if (!std::isfinite(weight) || weight < 0) {
    throw DataError(c10::str("[MeanLoss] found weight ", weight, ", expected 0 or more; correct Task::weight"));
  }
  if (weight == 0) return;  // a mean over nothing: NaN, which must not spoil the sum
  const at::NoGradGuard no_grad;
  const at::Tensor part = loss.detach().reshape({}).to(at::kDouble).mul(weight);
  // Out of place: the first value may come from inference mode, where a later in-place add is an error.
  sum_ = sum_.defined() ? sum_.add(part) : part;
  weight_ += weight;
}

MetricValues MeanLoss::compute() const {
  if (!sum_.defined()) return {};
  return {{"loss", sum_.item<double>() / weight_}};
}

Accuracy::Accuracy(std::string target, std::string prediction)
    : target_(std::move(target)), prediction_(std::move(prediction)) {}

void Accuracy::reset() {
  correct_.reset();
  count_ = 0;
}

void Accuracy::add(const Batch& batch, const NamedTensors& outputs, double /*weight*/) {
  const at::Tensor& prediction = output("Accuracy", outputs, prediction_);
  const at::Tensor& target = batch[target_];
  if (prediction.dim() < 2 || prediction.size(1) < 1 || prediction.is_complex() ||
      prediction.scalar_type() == at::kBool) {
    throw DataError(c10::str("[Accuracy] found '", prediction_, "' ", prediction.scalar_type(), " ", prediction.sizes(),
                             ", expected real scores [N, classes, ...]; return the logits"));
  }
  if (!at::isIntegralType(target.scalar_type(), /*includeBool=*/false)) {
    throw DataError(c10::str("[Accuracy] found '", target_, "' ", target.scalar_type(), " ", target.sizes(),
                             ", expected class numbers, int64 [N, ...]; convert it in the dataset"));
  }
  std::vector<int64_t> expected = prediction.sizes().vec();
  expected.erase(expected.begin() + 1);
  if (target.sizes() != at::IntArrayRef(expected)) {
    throw DataError(c10::str("[Accuracy] found '", target_, "' of shape ", target.sizes(), ", expected ",
                             at::IntArrayRef(expected), " to match '", prediction_, "' ", prediction.sizes(),
                             "; give one class number per prediction"));
  }
  const at::NoGradGuard no_grad;
  const at::Tensor part = prediction.detach().argmax(1).eq(target.to(prediction.device())).sum();
  correct_ = correct_.defined() ? correct_.add(part) : part;
  count_ += target.numel();
}

MetricValues Accuracy::compute() const {
  if (count_ == 0) return {};
  return {{"accuracy", static_cast<double>(correct_.item<int64_t>()) / static_cast<double>(count_)}};
}

}  // namespace duet
