#pragma once

#include <optional>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace duet {

// Autocast to `dtype` on `device` for a scope; no dtype: does nothing. The cast cache is off: a cast made before a
// capture would be missing from it and go stale. Restores everything it found, also on a throw.
class AutocastGuard {
 public:
  AutocastGuard(c10::Device device, std::optional<c10::ScalarType> dtype);
  ~AutocastGuard();
  AutocastGuard(const AutocastGuard&) = delete;
  AutocastGuard& operator=(const AutocastGuard&) = delete;

 private:
  c10::DeviceType type_;
  bool active_;
  bool was_enabled_ = false;
  bool cache_was_enabled_ = false;
  c10::ScalarType was_dtype_ = c10::ScalarType::Undefined;
};

}  // namespace duet
