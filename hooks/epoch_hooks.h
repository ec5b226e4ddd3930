#pragma once

#include <cstdint>
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
};

// Makes the buffers of the model (BatchNorm's running statistics) the same on every rank: floating-point ones become
// the mean over the ranks, others those of rank 0. After each epoch of training, and before a validation unless nothing
// has trained since. Values are written in place, so that a captured step finds them where they were.
//
// It is for DistributedOptions::broadcast_buffers = false: with broadcast_buffers every step ends with rank 0's
// buffers on all ranks, and there is nothing left to average.
//
// It acts at before_val and not, as in mmengine, at before_val_epoch: there EMAHook brings its average in, and the
// buffers that belong to the weights would be missed.
class SyncBuffersHook : public Hook {
 public:
  std::string name() const override { return "sync_buffers"; }

  void before_train(TrainContext& context) override;
  void after_train_epoch(TrainContext& context) override;
  void before_val(TrainContext& context) override;

 private:
  void synchronize(TrainContext& context);

  int64_t synced_step_ = -1;  // nothing has changed a buffer since this step
};

}  // namespace duet
