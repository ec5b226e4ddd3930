#pragma once

#include <functional>
#include <utility>
#include <vector>
#include "core/detail/step_executor.h"
#include "graph/detail/gradient_handles.h"

namespace duet {

// Calls `at_first` before the first hooks between the kernels of a step. The hooks themselves, host code that must not
// run twice in one step, are called or not; in-step code belongs to both runs.
class FirstSplit : public ForwardingObserver {
 public:
  enum class Hooks { kCalled, kLeftOut };
  FirstSplit(StepObserver& inner, Hooks hooks, std::function<void(const StepView&)> at_first)
      : ForwardingObserver(inner), hooks_(hooks), at_first_(std::move(at_first)) {}

  // Whether hooks have removed a gradient, added one or given it another layout: a replay would end op by op.
  bool leaves_recording() const { return leaves_recording_; }

 private:
  void at_split(SplitPoint, const StepView& view, std::function<void()> hooks) override {
    if (at_first_) std::exchange(at_first_, nullptr)(view);
    if (hooks_ == Hooks::kLeftOut) return;
    std::vector<at::Tensor> before;
    for (const auto& parameter : view.parameters) before.push_back(parameter.second.grad());
    hooks();
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (!same_layout(before[i], view.parameters[i].second.grad())) leaves_recording_ = true;
    }
  }

  Hooks hooks_;
  std::function<void(const StepView&)> at_first_;
  bool leaves_recording_ = false;
};

}  // namespace duet
