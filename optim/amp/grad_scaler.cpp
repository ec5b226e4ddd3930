#include "optim/amp/grad_scaler.h"

#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"

#include <cmath>
#include <map>

namespace duet {

void LossScaleOptions::validate() const {
  const auto check = [](const char* field, double value, bool valid, const char* expected) {
    if (valid && std::isfinite(value)) return;
    throw ConfigError(c10::str("[LossScaleOptions] ", field, " is ", value, ", expected ", expected));
  };
  check("init_scale", init_scale, init_scale > 0 && static_cast<float>(init_scale) > 0 &&
        std::isfinite(static_cast<float>(init_scale)), "a float32 number > 0");
  check("growth_factor", growth_factor, growth_factor > 1, "a number > 1");
  check("backoff_factor", backoff_factor, backoff_factor > 0 && backoff_factor < 1, "a number in (0, 1)");
  check("growth_interval", static_cast<double>(growth_interval), growth_interval >= 1 && growth_interval <= INT32_MAX,
        "an integer >= 1");
}

GradScaler::GradScaler(const LossScaleOptions& options, at::Device device) : options_(options) {
  options_.validate();
  scale_ = at::full({1}, options_.init_scale, at::TensorOptions().dtype(at::kFloat).device(device));
  growth_tracker_ = at::full({1}, 0, at::TensorOptions().dtype(at::kInt).device(device));
}

void GradScaler::update(const at::Tensor& found_inf) {
  if (!options_.dynamic) return;
  at::_amp_update_scale_(scale_, growth_tracker_, found_inf, options_.growth_factor, options_.backoff_factor,
                         options_.growth_interval);
}

StateDict GradScaler::state_dict() const {
  StateDict state;
  state.set("scale", scale_);
  state.set("growth_tracker", growth_tracker_);
  return state;
}

// A static scale is the one configured, whatever the state was trained with.
void GradScaler::load_state_dict(const StateDict& state) {
  check_state("scaler.scale", state.tensor("scale"), scale_);
  check_state("scaler.growth_tracker", state.tensor("growth_tracker"), growth_tracker_);
  if (!options_.dynamic) return;
  copy_state("scaler.scale", state.tensor("scale"), scale_);
  copy_state("scaler.growth_tracker", state.tensor("growth_tracker"), growth_tracker_);
}

at::Tensor find_non_finite(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  at::Tensor found = at::zeros_like(factor);
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;  // the kernel takes one dtype at a time
  for (const at::Tensor& gradient : gradients) by_dtype[gradient.scalar_type()].push_back(gradient);
  for (auto& entry : by_dtype) at::_amp_foreach_non_finite_check_and_unscale_(entry.second, found, factor);
  return found;
}

}  // namespace duet
