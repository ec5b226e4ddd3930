#pragma once

#include "core/detail/train_step.h"
#include "core/hook.h"

namespace duet {

// Lets the hooks of a trainer act inside its steps.
class HookObserver : public StepObserver {
 public:
  HookObserver(HookList& hooks, TrainContext& context) : hooks_(hooks), context_(context) {}

  bool splits() const override {
    return hooks_.uses(HookPoint::kAfterBackward) || hooks_.uses(HookPoint::kBeforeOptimizerStep);
  }
  int64_t version() const override { return 2 * static_cast<int64_t>(hooks_.size()) + (wants_outputs() ? 1 : 0); }
  bool wants_outputs() const override { return hooks_.wants_outputs(); }
  int64_t steps_done() const override { return context_.progress.step; }
  bool postpones_checks() const override { return context_.control.postpones_checks; }
  void after_backward(const StepView& view) override { call(HookPoint::kAfterBackward, view); }
  void before_optimizer_step(const StepView& view) override { call(HookPoint::kBeforeOptimizerStep, view); }
  void in_step(StepView& view) override {
    if (hooks_.uses(HookPoint::kInStep)) hooks_.in_step(view);
  }

 private:
  void call(HookPoint point, const StepView& view) {
    if (!hooks_.uses(point)) return;
    context_.step.result = &view.output;
    hooks_.call(point, context_);
    context_.step.result = nullptr;
  }

  HookList& hooks_;
  TrainContext& context_;
};

}  // namespace duet
