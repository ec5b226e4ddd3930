#pragma once

#include <ATen/autocast_mode.h>

namespace duet::testing {

// What autocast is set to on the CPU now.
struct AutocastState {
  bool enabled = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType dtype = at::autocast::get_autocast_dtype(at::kCPU);
  bool cache = at::autocast::is_autocast_cache_enabled();
  bool operator==(const AutocastState&) const = default;
};

}  // namespace duet::testing
