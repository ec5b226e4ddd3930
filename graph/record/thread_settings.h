#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>

namespace duet {

// What a kernel asks of its thread beside its arguments: some keep more if there is to be a backward (oneDNN's RNN),
// and those that call further ops (linalg_pinv) get them autocast.
struct ThreadSettings {
  static constexpr std::array<c10::DeviceType, 2> kTypes = {c10::kCPU, c10::kCUDA};

  bool grad_mode = false;
  std::array<std::optional<c10::ScalarType>, 2> autocast{};  // by type of device

  static ThreadSettings now() {
    ThreadSettings settings{at::GradMode::is_enabled(), {}};
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      if (at::autocast::is_autocast_enabled(kTypes[i]))
        settings.autocast[i] = at::autocast::get_autocast_dtype(kTypes[i]);
    }
    return settings;
  }
  void apply() const {
    at::GradMode::set_enabled(grad_mode);
    for (std::size_t i = 0; i < kTypes.size(); ++i) {
      if (at::autocast::is_autocast_enabled(kTypes[i]) != autocast[i].has_value()) {
        at::autocast::set_autocast_enabled(kTypes[i], autocast[i].has_value());
      }
      if (autocast[i]) at::autocast::set_autocast_dtype(kTypes[i], *autocast[i]);
    }
  }
  // A number that is the same for equal ones.
  int64_t key() const {
    int64_t number = grad_mode ? 1 : 0;
    for (const auto& dtype : autocast) number = 256 * number + (dtype ? static_cast<int64_t>(*dtype) + 1 : 0);
    return number;
  }
  bool operator==(const ThreadSettings& other) const = default;
};

// Puts the thread's settings back at its end. Casts are not cached while it lives: a cached one would go stale.
class ThreadSettingsGuard {
 public:
  ThreadSettingsGuard() : before_(ThreadSettings::now()), caches_(at::autocast::is_autocast_cache_enabled()) {
    for (std::size_t i = 0; i < dtypes_.size(); ++i) {
      dtypes_[i] = at::autocast::get_autocast_dtype(ThreadSettings::kTypes[i]);
    }
    at::autocast::set_autocast_cache_enabled(false);
  }
  ~ThreadSettingsGuard() {
    before_.apply();
    for (std::size_t i = 0; i < dtypes_.size(); ++i) {
      at::autocast::set_autocast_dtype(ThreadSettings::kTypes[i], dtypes_[i]);
    }
    at::autocast::set_autocast_cache_enabled(caches_);
  }
  ThreadSettingsGuard(const ThreadSettingsGuard&) = delete;
  ThreadSettingsGuard& operator=(const ThreadSettingsGuard&) = delete;

 private:
  ThreadSettings before_;
  std::array<c10::ScalarType, 2> dtypes_{};
  bool caches_;
};

}  // namespace duet
