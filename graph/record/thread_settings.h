#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace duet {

// Settings of the thread and of the process that decide what an op does or who sees it: one table of them, with what
// becomes of each, is in thread_settings.cpp.

// What a loop sets around its steps: a captured step is for these alone. Those of GPUs alone are left out elsewhere.
void append_settings(std::vector<int64_t>& key, bool on_gpu);

// What kernels on the CPU ask for whenever they run. They must be the same at all ops of a step.
using OpSettings = std::array<int64_t, 12>;
OpSettings op_settings();

// "default dtype": the first that is another one now; empty if none is. `of_products`: those of products as well.
std::string changed_setting(const OpSettings& before, bool of_products = true);

// Has its ops run under `settings`, if there are any, whatever host code has set meanwhile.
class OpSettingsGuard {
 public:
  explicit OpSettingsGuard(const std::optional<OpSettings>& settings);
  ~OpSettingsGuard();
  OpSettingsGuard(const OpSettingsGuard&) = delete;
  OpSettingsGuard& operator=(const OpSettingsGuard&) = delete;

 private:
  OpSettings before_, settings_;
};

// LibTorch can set this mode but not tell it.
bool flushes_denormals();

// What a kernel asks of its thread beside its arguments: some keep more if there is to be a backward (oneDNN's RNN),
// and those that call further ops (linalg_pinv) get them autocast. A replay sets it for each op.
using ThreadSettings = std::array<int64_t, 3>;
inline bool grad_mode(const ThreadSettings& settings) { return settings[0] != 0; }
ThreadSettings thread_settings();
void set_thread_settings(const ThreadSettings& settings);

// Likewise of an op's, and of those of all ops of its step (none: on a device).
std::string changed_setting(const ThreadSettings& recorded, const std::optional<OpSettings>& of_step, bool of_products);

// Puts the thread's settings back at its end. Casts are not cached while it lives: a cached one would go stale.
class ThreadSettingsGuard {
 public:
  ThreadSettingsGuard();
  ~ThreadSettingsGuard();
  ThreadSettingsGuard(const ThreadSettingsGuard&) = delete;
  ThreadSettingsGuard& operator=(const ThreadSettingsGuard&) = delete;

 private:
  static constexpr std::array<c10::DeviceType, 2> kTypes = {c10::kCPU, c10::kCUDA};
  ThreadSettings before_ = thread_settings();
  std::array<c10::ScalarType, 2> dtypes_{};  // which autocast has also where it is off
  bool caches_;
};

}  // namespace duet
