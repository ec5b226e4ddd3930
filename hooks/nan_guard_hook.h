#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

class ValueHistory;

struct NaNGuardHookOptions {
  int64_t interval = 50;         // >= 1: steps between two looks, each of which waits for the device once
  std::string action = "raise";  // "raise": NonFiniteError; "stop": training ends; "warn": one warning per look

  static const OptionFields& fields();
};

// Watches that loss and gradient norm (known if gradients are clipped) stay finite. The results of each step are kept
// where they are, which costs nothing, and all looked at every `interval` steps: the message names the very step
// that was the first, and which of loss, logged values, gradients, weights and buffers are not finite by then. Weights
// that are not finite are never saved: a state is checked before it is taken for a checkpoint, and refused with
// SaveRefused ("raise": NonFiniteError), which leaves the checkpoints before it as they are and lets the run end as
// `action` says.
//
// This hook finds out; it does not change what a step does. TrainerOptions::non_finite does that: with its kSkip or
// kRaise, and with loss scaling, a step that is not finite changes no weight, which is in order for this hook: it
// then looks at nothing but what is saved.
class NaNGuardHook : public Hook {
 public:
  // Throws ConfigError for options out of range.
  explicit NaNGuardHook(NaNGuardHookOptions options = {});
  ~NaNGuardHook() override;

  std::string name() const override { return "nan_guard"; }
  // Before timer (50), logger (60) and checkpoint (90): the log writes the last line of a run that is stopped here.
  int priority() const override { return kAboveNormal; }

  void before_train(TrainContext& context) override;
  void in_step(StepView& context) override;
  void after_train_iter(TrainContext& context) override;
  void before_save_checkpoint(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  void restart(int64_t step);
  // The first step since the watch began that was not finite; 0: none. Waits for the device.
  int64_t first_bad_step() const;
  void look(TrainContext& context);

  NaNGuardHookOptions options_;
  std::unique_ptr<ValueHistory> losses_, norms_;  // of the steps since watch_start_
  int64_t watch_start_ = 0;                       // finished steps when this watch began
  bool may_skip_ = false;                         // steps may be skipped
};

}  // namespace duet
