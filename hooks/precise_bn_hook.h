#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

class DataSource;

struct PreciseBNHookOptions {
  int64_t num_iter = 200;  // batches that the statistics are taken over; fewer where an epoch has fewer

  static const OptionFields& fields();
};

// Before each validation it recomputes the running statistics of batch norm with the weights as they are, as
// detectron2's hook and fvcore's update_bn_stats: the mean and (biased) variance of all that the layers see in these
// batches, over all ranks. With EMAHook, without its update_buffers, those of the average.
//
// They stay in the model until the next step, so that a checkpoint of the validation holds them. The next step goes on
// with training's own statistics, which are part of the hook's state; random numbers and other buffers stay as they
// are.
//
// The layers are found by their ops, in the model's code, TorchScript and exported graphs. training_step runs op by op
// and in full precision, with layers in training mode.
class PreciseBNHook : public Hook {
 public:
  // `data` gives batches of the training data; each time it starts the epoch whose number is that of the step. Null: it
  // does nothing, in a run that only evaluates. Throws ConfigError for options out of range.
  explicit PreciseBNHook(std::shared_ptr<DataSource> data, const PreciseBNHookOptions& options = {});

  std::string name() const override { return "precise_bn"; }
  int priority() const override { return kNormal + 5; }  // after an average of the weights was brought in

  void before_train_iter(TrainContext& context) override;
  void before_val_epoch(TrainContext& context) override;
  void after_val_epoch(TrainContext& context) override;

  // Training's own statistics, while the model has others, and these: what was loaded meanwhile stays. And the position
  // of the data, which may be endless.
  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  std::shared_ptr<DataSource> data_;
  PreciseBNHookOptions options_;
  StateDict own_;
  StateDict position_;  // to go on from
  StateDict begun_;     // where the data stood when the validation began that runs: one that is cut is made up for
};

}  // namespace duet
