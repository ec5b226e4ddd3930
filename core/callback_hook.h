#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>
#include "hook.h"

namespace duet {

// Lambdas as one hook, with a name, a priority and others that it comes after; BaseTrainer::on() does for a single one:
//
//   auto hook = std::make_unique<CallbackHook>("watch");
//   hook->on(HookPoint::kAfterTrainIter, [](TrainContext& run) { ... });
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

#define DUET_CALL(point, member) \
  void member(TrainContext& run) override { call(HookPoint::point, run); }
  DUET_HOOK_POINTS(DUET_CALL)
#undef DUET_CALL
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
