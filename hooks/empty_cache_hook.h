#pragma once

#include <functional>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

struct EmptyCacheHookOptions {
  bool before_epoch = false;
  bool after_epoch = true;
  bool after_iter = false;  // costs a wait for the device and new allocations in every step

  static const OptionFields& fields();
};

// Gives memory that the device's caching allocator holds but nobody uses back to the device, where other processes can
// have it: before or after epochs, passes of validation, test and prediction included, or after each step and batch.
// Blocks in use stay, and so does the pool of a captured step, which its graph needs as long as it lives. The points
// lie outside of captured steps. On the CPU there is no such cache and this hook does nothing.
class EmptyCacheHook : public CallbackHook {
 public:
  // `empty_cache` takes the place of the allocator's. Throws ConfigError for options out of range.
  explicit EmptyCacheHook(const EmptyCacheHookOptions& options = {}, std::function<void()> empty_cache = nullptr);

 private:
  std::function<void()> empty_cache_;  // null until the device is known
};

}  // namespace duet
