#pragma once

#include <cstdint>
#include <string>
#include "../core/hook.h"

namespace duet {

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

}  // namespace duet
