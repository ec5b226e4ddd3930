#pragma once

#include <duet/core/hook.h>

#include <cstdint>
#include <memory>

namespace duet {

// What SyncBuffersHook needs of a group of processes. All of them make the same calls in the same order.
class BufferSync {
 public:
  virtual ~BufferSync() = default;
  virtual int64_t world_size() const = 0;
  // Replaces the values of a contiguous tensor by their sum over the processes.
  virtual void sum(at::Tensor& values) = 0;
  // Likewise by those of process `root`.
  virtual void broadcast(at::Tensor& values, int64_t root) = 0;
};

// Makes the buffers of the model (BatchNorm's running statistics) the same in every process: floating-point ones become
// the mean over processes, others those of process 0. After each epoch of training, and before a validation unless
// nothing has trained since. Values are written in place, so that a captured step finds them where they were.
//
// It acts at before_val and not, as in mmengine, at before_val_epoch: there EMAHook brings its average in, and the
// buffers that belong to the weights would be missed.
class SyncBuffersHook : public Hook {
 public:
  // Without a group there is one process, and nothing to do.
  explicit SyncBuffersHook(std::shared_ptr<BufferSync> group = nullptr);

  std::string name() const override { return "sync_buffers"; }
  int priority() const override { return kNormal; }

  void before_train(TrainContext& context) override;
  void after_train_epoch(TrainContext& context) override;
  void before_val(TrainContext& context) override;

 private:
  bool alone() const { return group_ == nullptr || group_->world_size() <= 1; }
  void synchronize(TrainContext& context);

  std::shared_ptr<BufferSync> group_;
  int64_t synced_update_ = -1;  // nothing has changed a buffer since this update
};

}  // namespace duet
