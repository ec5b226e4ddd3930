#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "../base/options.h"
#include "../core/hook.h"
#include "../optim/weight_average.h"

namespace duet {

struct EMAHookOptions {
  WeightAverageOptions average{};
  bool update_buffers = false;  // average floating-point buffers too; all others are taken as they are
  int64_t begin_iter = 0;       // >= 0: the applied step that averaging begins with; until then the average follows
  int64_t begin_epoch = 0;      // >= 0: likewise an epoch, the first being 1; not both
  bool evaluate_on_ema = true;  // validation, test and prediction use the average
  std::string name = "ema";     // of the state and of its file in a checkpoint: each hook of a run has its own

  static const OptionFields& fields();
};

// Keeps an average of the trainable weights, updated inside the step, and so captured with it. A step that is skipped
// does not count. Parameters that the trainer does not train are taken as they are.
//
// During validation, test and prediction the model holds the average, and its own weights again afterwards, however
// that ends: a pass that throws outside of training leaves them to the next step, pass, save or load, or to the hook's
// end. Taking the state gives them back at once; the next batch of a pass then brings the average in again.
//
// In a checkpoint the average is a file of its own, ema.safetensors, with the names of model.safetensors. A checkpoint
// without one starts it from the loaded weights.
// It has a member for each point at which the weights of the model are exchanged.
class EMAHook : public Hook {
 public:
  explicit EMAHook(EMAHookOptions options = {});
  ~EMAHook() override;

  std::string name() const override { return options_.name; }

  // Throws ConfigError for begin_epoch without a known length of an epoch, and if another hook evaluates its average
  // too.
  void before_train(TrainContext& context) override;
  void before_train_iter(TrainContext& context) override;
  void in_step(StepView& context) override;

  void before_val_epoch(TrainContext& context) override { begin_pass(context); }
  void before_test_epoch(TrainContext& context) override { begin_pass(context); }
  void before_predict_epoch(TrainContext& context) override { begin_pass(context); }
  void before_val_iter(TrainContext&) override { put_average_in(); }
  void before_test_iter(TrainContext&) override { put_average_in(); }
  void before_predict_iter(TrainContext&) override { put_average_in(); }
  void after_val_epoch(TrainContext&) override { end_pass(); }
  void after_test_epoch(TrainContext&) override { end_pass(); }
  void after_predict_epoch(TrainContext&) override { end_pass(); }
  // An interrupted pass has no after_*_epoch.
  void after_val(TrainContext&) override { end_pass(); }
  void on_exception(TrainContext&) override { end_pass(); }

  void before_save_checkpoint(TrainContext& context) override;
  void after_load_checkpoint(TrainContext& context) override;

  StateDict state_dict() const override;
  void load_state_dict(const StateDict& state) override;

 private:
  void attach(TrainContext& context);
  // A model may have put other tensors in the places of its buffers.
  void follow_buffers();
  void install(const StateDict& state);
  // The first step that is averaged, if this one has not begun yet.
  void plan_start(const TrainContext& context);
  void claim_evaluation(TrainContext& context) const;

  void begin_pass(TrainContext& context);
  void end_pass();
  void put_average_in();
  void give_weights_back() const;

  EMAHookOptions options_;
  std::optional<WeightAverage> average_;  // once the model is known
  const Task* task_ = nullptr;            // likewise
  std::optional<StateDict> loaded_;       // until after_load_checkpoint, or until the model is known
  bool in_pass_ = false;
  // The model's own weights while it holds the average: else empty. Not part of the hook's value: see state_dict().
  mutable std::vector<at::Tensor> own_weights_;
};

}  // namespace duet
