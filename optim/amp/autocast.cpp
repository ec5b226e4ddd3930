#include "optim/amp/autocast.h"
#include <ATen/autocast_mode.h>

namespace duet {

AutocastGuard::AutocastGuard(c10::Device device, std::optional<c10::ScalarType> dtype)
    : type_(device.type()), active_(dtype.has_value()) {
  if (!active_) return;
  was_enabled_ = at::autocast::is_autocast_enabled(type_);
  was_dtype_ = at::autocast::get_autocast_dtype(type_);
  cache_was_enabled_ = at::autocast::is_autocast_cache_enabled();
  at::autocast::increment_nesting();
  at::autocast::set_autocast_enabled(type_, true);
  at::autocast::set_autocast_dtype(type_, *dtype);
  at::autocast::set_autocast_cache_enabled(false);
}

AutocastGuard::~AutocastGuard() {
  if (!active_) return;
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(type_, was_enabled_);
  at::autocast::set_autocast_dtype(type_, was_dtype_);
  at::autocast::set_autocast_cache_enabled(cache_was_enabled_);
}

}  // namespace duet
