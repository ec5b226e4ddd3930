#include "optim/detail/amp.h"
#include <map>
#include <ATen/autocast_mode.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>

namespace duet {

AutocastGuard::AutocastGuard(c10::Device device, std::optional<c10::ScalarType> dtype) : type_(device.type()) {
  if (dtype) set(/*enabled=*/true, dtype, /*cache=*/false);
}

AutocastGuard::AutocastGuard(c10::DeviceType type, bool enabled, std::optional<c10::ScalarType> dtype,
                             std::optional<bool> cache)
    : type_(type) {
  set(enabled, dtype, cache);
}

void AutocastGuard::set(bool enabled, std::optional<c10::ScalarType> dtype, std::optional<bool> cache) {
  active_ = true;
  was_enabled_ = at::autocast::is_autocast_enabled(type_);
  was_dtype_ = at::autocast::get_autocast_dtype(type_);
  cache_was_enabled_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(type_, enabled);
  if (dtype) at::autocast::set_autocast_dtype(type_, *dtype);
  if (cache) at::autocast::set_autocast_cache_enabled(*cache);
}

AutocastGuard::~AutocastGuard() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_enabled_);
  at::autocast::set_autocast_dtype(type_, was_dtype_);
  at::autocast::set_autocast_cache_enabled(cache_was_enabled_);
}

GradScaler::GradScaler(const LossScaleOptions& options, at::Device device) : options_(options) {
  check_options(options_);
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
  for (const auto& [name, tensor] : mutable_state()) state.set(name, tensor);
  return state;
}

// A static scale is the one configured, whatever the state was trained with.
void GradScaler::load_state_dict(const StateDict& state) {
  for (const auto& [name, tensor] : mutable_state()) check_state("scaler." + name, state.tensor(name), tensor);
  if (!options_.dynamic) return;
  for (const auto& [name, tensor] : mutable_state()) copy_state("scaler." + name, state.tensor(name), tensor);
}

at::Tensor find_non_finite(const std::vector<at::Tensor>& gradients, const at::Tensor& factor) {
  at::Tensor found = at::zeros_like(factor);
  std::map<at::ScalarType, std::vector<at::Tensor>> by_dtype;  // the kernel takes one dtype at a time
  for (const at::Tensor& gradient : gradients) by_dtype[gradient.scalar_type()].push_back(gradient);
  for (auto& entry : by_dtype) at::_amp_foreach_non_finite_check_and_unscale_(entry.second, found, factor);
  return found;
}

}  // namespace duet
