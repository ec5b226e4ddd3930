#pragma once

#include <functional>
#include <string>
#include <utility>
#include "core/detail/step_executor.h"
#include "graph/guards/storage_watch.h"

namespace duet {

// Calls `at_first` before the first hooks between the kernels of a step. The hooks themselves, host code that must not
// run twice in one step, are called or not; in-step code belongs to both runs.
class FirstSplit : public ForwardingObserver {
 public:
  enum class Hooks { kCalled, kLeftOut };
  FirstSplit(StepObserver& inner, Hooks hooks, std::function<void(const StepView&)> at_first)
      : ForwardingObserver(inner), hooks_(hooks), at_first_(std::move(at_first)) {}

  // The first parameter whose gradient hooks have replaced or removed: a replay would end op by op.
  const std::string& replaced_gradient() const { return replaced_gradient_; }

 private:
  void at_split(SplitPoint, const StepView& view, const std::function<void()>& hooks) override {
    if (at_first_) std::exchange(at_first_, nullptr)(view);
    if (hooks_ == Hooks::kLeftOut) return;
    NamedTensors before;
    for (const auto& [name, parameter] : view.parameters) before.emplace_back(name, parameter.grad());
    StorageWatch places;
    places.write(before);
    hooks();
    for (std::size_t i = 0; i < before.size() && replaced_gradient_.empty(); ++i) {
      if (!view.parameters[i].second.grad().is_same(before[i].second)) replaced_gradient_ = before[i].first;
    }
    if (replaced_gradient_.empty()) replaced_gradient_ = places.moved();
  }

  Hooks hooks_;
  std::function<void(const StepView&)> at_first_;
  std::string replaced_gradient_;
};

}  // namespace duet
