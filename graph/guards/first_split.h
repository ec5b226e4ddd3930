#pragma once

#include <functional>
#include <utility>
#include "core/detail/step_executor.h"

namespace duet {

// Calls `at_first` before the first hooks between the kernels of a step. The hooks themselves, host code that must not
// run twice in one step, are called or not; in-step code belongs to both runs.
class FirstSplit : public StepObserver {
 public:
  enum class Hooks { kCalled, kLeftOut };
  FirstSplit(StepObserver& inner, Hooks hooks, std::function<void(const StepView&)> at_first)
      : inner_(inner), hooks_(hooks), at_first_(std::move(at_first)) {}

  bool splits() const override { return inner_.splits(); }
  bool wants_outputs() const override { return inner_.wants_outputs(); }
  void after_backward(const StepView& view) override {
    reach(view);
    if (hooks_ == Hooks::kCalled) inner_.after_backward(view);
  }
  void before_optimizer_step(const StepView& view) override {
    reach(view);
    if (hooks_ == Hooks::kCalled) inner_.before_optimizer_step(view);
  }
  void in_step(StepView& view) override { inner_.in_step(view); }

 private:
  void reach(const StepView& view) {
    if (at_first_) std::exchange(at_first_, nullptr)(view);
  }

  StepObserver& inner_;
  Hooks hooks_;
  std::function<void(const StepView&)> at_first_;
};

}  // namespace duet
