#include "hooks/empty_cache_hook.h"
#include <utility>
#include <c10/core/CachingDeviceAllocator.h>
#include "base/error.h"
#include "base/log.h"
#include "core/task.h"
#include "hooks/detail/shared.h"

namespace duet {

namespace {

// What frees the unused blocks of the device that the model is on.
std::function<void()> cache_of(const Task& task) {
  const c10::DeviceType device = device_of(task).type();
  if (device == c10::DeviceType::CPU) {
    log_info("[EmptyCacheHook] the model is on the CPU, whose allocator keeps no cache: there is nothing to free");
    return [] {};
  }
  return [device] { c10::getDeviceAllocator(device)->emptyCache(); };
}

}  // namespace

const OptionFields& EmptyCacheHookOptions::fields() {
  using O = EmptyCacheHookOptions;
  return described<O>("EmptyCacheHook", [](const auto& add) {
    add("before_epoch", &O::before_epoch, "before each epoch and pass");
    add("after_epoch", &O::after_epoch, "after each epoch and pass");
    add("after_iter", &O::after_iter, "after each step and batch, which costs a wait for the device");
    add.rule([](const O& o) {
      require<ConfigError>(
          o.before_epoch || o.after_epoch || o.after_iter,
          "[EmptyCacheHook] found before_epoch, after_epoch and after_iter off, expected one of them on; set one, "
          "or remove this hook");
    });
  });
}

EmptyCacheHook::EmptyCacheHook(const EmptyCacheHookOptions& options, std::function<void()> empty_cache)
    : CallbackHook("empty_cache"), empty_cache_(std::move(empty_cache)) {
  check_options(options);
  const auto free_at = [this](std::initializer_list<HookPoint> points) {
    for (const HookPoint point : points) {
      on(point, [this](TrainContext& context) {
        if (!empty_cache_) empty_cache_ = cache_of(context.task);
        empty_cache_();
      });
    }
  };
  using enum HookPoint;
  if (options.before_epoch) free_at({kBeforeTrainEpoch, kBeforeValEpoch, kBeforeTestEpoch, kBeforePredictEpoch});
  if (options.after_epoch) free_at({kAfterTrainEpoch, kAfterValEpoch, kAfterTestEpoch, kAfterPredictEpoch});
  if (options.after_iter) free_at({kAfterTrainIter, kAfterValIter, kAfterTestIter, kAfterPredictIter});
}

}  // namespace duet
