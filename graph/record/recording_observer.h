#pragma once

#include "graph/record/op_recorder.h"

namespace duet {

// Runs the hooks of a split point with the recorder paused, and marks the place.
class RecordingObserver : public StepObserver {
 public:
  RecordingObserver(StepObserver& inner, OpRecorder& recorder) : inner_(inner), recorder_(recorder) {}

  void after_backward(const StepView& view) override {
    split(SplitPoint::kAfterBackward, view, [&] { inner_.after_backward(view); });
  }
  void before_optimizer_step(const StepView& view) override {
    split(SplitPoint::kBeforeOptimizerStep, view, [&] { inner_.before_optimizer_step(view); });
  }
  void in_step(StepView& view) override { inner_.in_step(view); }

 private:
  template <class Call>
  void split(SplitPoint point, const StepView& view, Call call) {
    if (!inner_.splits()) return;
    std::vector<const void*> addresses;
    for (const auto& parameter : view.parameters) addresses.push_back(address(parameter.second.grad()));
    recorder_.mark_split(point);
    recorder_.pause();
    call();
    recorder_.resume();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (address(view.parameters[i].second.grad()) == addresses[i]) continue;
      recorder_.fail("a hook put another tensor in the place of the gradient of '" + view.parameters[i].first +
                     "'; change the gradient in place (copy_, mul_, ...)");
    }
  }
  static const void* address(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

  StepObserver& inner_;
  OpRecorder& recorder_;
};

}  // namespace duet
