#pragma once

#include "../core/hook.h"

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace duet {

// Lambdas as a hook:
//
//   auto hook = std::make_unique<CallbackHook>("watch");
//   hook->on(HookPoint::kAfterTrainIter, [](TrainContext& context) { ... });
//   trainer.add_hook(std::move(hook));
//
// Points without a lambda cost nothing. Several lambdas of a point run in the order they were given in. Give all of
// them before the hook is added to a trainer, which may capture what acts inside of steps.
class CallbackHook : public Hook {
 public:
  using Callback = std::function<void(TrainContext&)>;
  using StepCallback = std::function<void(StepView&)>;

  // `after`: names of hooks that must run before this one.
  explicit CallbackHook(std::string name, int priority = kNormal, std::vector<std::string> after = {});

  // Throws ConfigError for an empty callback, and for kInStep, which on_step() is for.
  CallbackHook& on(HookPoint point, Callback callback);
  // Tensor code of the step itself, without host reads: see Hook::in_step.
  CallbackHook& on_step(StepCallback callback);

  std::string name() const override { return name_; }
  int priority() const override { return priority_; }
  std::vector<std::string> after() const override { return after_; }

  void before_run(TrainContext& c) override { call(HookPoint::kBeforeRun, c); }
  void after_run(TrainContext& c) override { call(HookPoint::kAfterRun, c); }
  void before_train(TrainContext& c) override { call(HookPoint::kBeforeTrain, c); }
  void after_train(TrainContext& c) override { call(HookPoint::kAfterTrain, c); }
  void before_train_epoch(TrainContext& c) override { call(HookPoint::kBeforeTrainEpoch, c); }
  void after_train_epoch(TrainContext& c) override { call(HookPoint::kAfterTrainEpoch, c); }
  void before_train_iter(TrainContext& c) override { call(HookPoint::kBeforeTrainIter, c); }
  void after_train_iter(TrainContext& c) override { call(HookPoint::kAfterTrainIter, c); }
  void before_val(TrainContext& c) override { call(HookPoint::kBeforeVal, c); }
  void after_val(TrainContext& c) override { call(HookPoint::kAfterVal, c); }
  void before_val_epoch(TrainContext& c) override { call(HookPoint::kBeforeValEpoch, c); }
  void after_val_epoch(TrainContext& c) override { call(HookPoint::kAfterValEpoch, c); }
  void before_val_iter(TrainContext& c) override { call(HookPoint::kBeforeValIter, c); }
  void after_val_iter(TrainContext& c) override { call(HookPoint::kAfterValIter, c); }
  void before_test(TrainContext& c) override { call(HookPoint::kBeforeTest, c); }
  void after_test(TrainContext& c) override { call(HookPoint::kAfterTest, c); }
  void before_test_epoch(TrainContext& c) override { call(HookPoint::kBeforeTestEpoch, c); }
  void after_test_epoch(TrainContext& c) override { call(HookPoint::kAfterTestEpoch, c); }
  void before_test_iter(TrainContext& c) override { call(HookPoint::kBeforeTestIter, c); }
  void after_test_iter(TrainContext& c) override { call(HookPoint::kAfterTestIter, c); }
  void before_predict(TrainContext& c) override { call(HookPoint::kBeforePredict, c); }
  void after_predict(TrainContext& c) override { call(HookPoint::kAfterPredict, c); }
  void before_predict_epoch(TrainContext& c) override { call(HookPoint::kBeforePredictEpoch, c); }
  void after_predict_epoch(TrainContext& c) override { call(HookPoint::kAfterPredictEpoch, c); }
  void before_predict_iter(TrainContext& c) override { call(HookPoint::kBeforePredictIter, c); }
  void after_predict_iter(TrainContext& c) override { call(HookPoint::kAfterPredictIter, c); }
  void before_save_checkpoint(TrainContext& c) override { call(HookPoint::kBeforeSaveCheckpoint, c); }
  void after_load_checkpoint(TrainContext& c) override { call(HookPoint::kAfterLoadCheckpoint, c); }
  void after_backward(TrainContext& c) override { call(HookPoint::kAfterBackward, c); }
  void before_optimizer_step(TrainContext& c) override { call(HookPoint::kBeforeOptimizerStep, c); }
  void after_optimizer_step(TrainContext& c) override { call(HookPoint::kAfterOptimizerStep, c); }
  void on_exception(TrainContext& c) override { call(HookPoint::kOnException, c); }
  void in_step(StepView& context) override;

 private:
  void call(HookPoint point, TrainContext& context);

  std::string name_;
  int priority_;
  std::vector<std::string> after_;
  std::map<HookPoint, std::vector<Callback>> callbacks_;
  std::vector<StepCallback> step_callbacks_;
};

}  // namespace duet
