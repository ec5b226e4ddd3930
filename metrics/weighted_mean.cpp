#include "metrics/weighted_mean.h"
#include <cmath>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"

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

}  // namespace duet
