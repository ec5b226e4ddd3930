#pragma once

#include <functional>
#include <utility>
#include "core/detail/step_executor.h"

namespace duet {

// Another observer, with `act` instead of, or around, its hooks at split points.
class AtSplits : public ForwardingObserver {
 public:
  using Act = std::function<void(SplitPoint point, const StepView& view, const std::function<void()>& hooks)>;
  AtSplits(StepObserver& inner, Act act) : ForwardingObserver(inner), act_(std::move(act)) {}

 private:
  void at_split(SplitPoint point, const StepView& view, const std::function<void()>& hooks) override {
    act_(point, view, hooks);
  }

  Act act_;
};

}  // namespace duet
