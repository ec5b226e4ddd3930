#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

struct EmptyCacheHookOptions {
  bool before_epoch = false;
  bool after_epoch = true;
  bool after_iter = false;  // costs a wait for the device and new allocations in every step

  static const OptionFields& fields();
  void validate() const { check_options(*this); }
};

// Gives memory that the device's caching allocator holds but nobody uses back to the device, where other processes can
// have it: before or after epochs, passes of validation, test and prediction included, or after each step and batch.
// Blocks in use stay, and so does the pool of a captured step, which its graph needs as long as it lives. The points
// lie outside of captured steps. On the CPU there is no such cache and this hook does nothing.
class EmptyCacheHook : public Hook {
 public:
  // `empty_cache` takes the place of the allocator's. Throws ConfigError for options out of range.
  explicit EmptyCacheHook(EmptyCacheHookOptions options = {}, std::function<void()> empty_cache = nullptr);

  std::string name() const override { return "empty_cache"; }
  int priority() const override { return kNormal; }

  void before_train_epoch(TrainContext& context) override { free(context); }
  void before_val_epoch(TrainContext& context) override { free(context); }
  void before_test_epoch(TrainContext& context) override { free(context); }
  void before_predict_epoch(TrainContext& context) override { free(context); }
  void after_train_epoch(TrainContext& context) override { free(context); }
  void after_val_epoch(TrainContext& context) override { free(context); }
  void after_test_epoch(TrainContext& context) override { free(context); }
  void after_predict_epoch(TrainContext& context) override { free(context); }
  void after_train_iter(TrainContext& context) override { free(context); }
  void after_val_iter(TrainContext& context) override { free(context); }
  void after_test_iter(TrainContext& context) override { free(context); }
  void after_predict_iter(TrainContext& context) override { free(context); }

 private:
  void free(TrainContext& context);

  std::function<void()> empty_cache_;  // null until the device is known
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
  int priority() const override { return kNormal; }

  void before_train(TrainContext& context) override;
  void after_train_epoch(TrainContext& context) override;
  void before_val(TrainContext& context) override;

 private:
  void synchronize(TrainContext& context);

  int64_t synced_step_ = -1;  // nothing has changed a buffer since this step
};

// While one lives, the first SIGINT, SIGTERM or SIGUSR1 only leaves a note, and a second one ends the process at once
// with 128 + its number, as shells report it. The last one to go gives the handlers back that were there before.
// Signals that were ignored before (nohup) stay ignored.
class StopSignals {
 public:
  StopSignals();
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // 0, or the signal that asked to stop since the first of those alive was made.
  static int received();
  // "SIGTERM"
  static std::string name(int signal);
};

// Interrupts training when a signal asks for it: after the step that runs, or between two batches of a validation,
// which the resume then makes up for. The state is saved by CheckpointHook at the end, and BaseTrainer::outcome() is
// kInterrupted. A signal that comes while the loop waits for data is seen after the step that the data was for.
class StopSignalHook : public Hook {
 public:
  std::string name() const override { return "stop_signal"; }
  int priority() const override { return kVeryHigh; }

  void before_run(TrainContext& context) override;
  void before_train(TrainContext& context) override { poll(context); }  // a signal during set-up
  void after_train_iter(TrainContext& context) override { poll(context); }
  void before_val_epoch(TrainContext& context) override { poll(context); }
  void after_val_iter(TrainContext& context) override { poll(context); }
  void after_run(TrainContext& context) override;

 private:
  static void poll(TrainContext& context);

  std::unique_ptr<StopSignals> signals_;  // from before_run to after_run
};

}  // namespace duet
