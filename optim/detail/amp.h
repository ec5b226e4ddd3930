#pragma once

#include <optional>
#include <vector>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>
#include "base/batch.h"
#include "base/state_dict.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

// Autocast's settings on a device for a scope. Restores everything it found, also on a throw.
class AutocastGuard {
 public:
  // Casts to `dtype`; no dtype: does nothing. The cast cache is off: a cast made before a capture would be missing from
  // it and go stale.
  AutocastGuard(c10::Device device, std::optional<c10::ScalarType> dtype);
  // What is not given stays.
  AutocastGuard(c10::DeviceType type, bool enabled, std::optional<c10::ScalarType> dtype, std::optional<bool> cache);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  void set(bool enabled, std::optional<c10::ScalarType> dtype, std::optional<bool> cache);

  c10::DeviceType type_;
  bool active_ = false;
  bool was_enabled_ = false;
  bool cache_was_enabled_ = false;
  c10::ScalarType was_dtype_ = c10::ScalarType::Undefined;
};

// The loss scale of float16 training, on the device: as torch.amp.GradScaler, without its host read per step.
class GradScaler : public Stateful {
 public:
  GradScaler(const LossScaleOptions& options, at::Device device);

  // float32, one element.
  const at::Tensor& scale() const { return scale_; }
  // After a step whose gradients had an inf or NaN (found_inf 1; float32, one element) or not.
  void update(const at::Tensor& found_inf);

  NamedTensors mutable_state() const { return {{"scale", scale_}, {"growth_tracker", growth_tracker_}}; }
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  LossScaleOptions options_;
  at::Tensor scale_;           // float32 [1]
  at::Tensor growth_tracker_;  // int32 [1]: good steps since the scale last changed
};

// 1 if any gradient has an inf or NaN, else 0 (float32, one element), as torch.amp.GradScaler finds it. Multiplies the
// gradients in place by `factor` (float32, one element), which may be 1.
at::Tensor find_non_finite(const std::vector<at::Tensor>& gradients, const at::Tensor& factor);

}  // namespace duet
