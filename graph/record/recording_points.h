#pragma once

#include "graph/detail/captured_step.h"
#include "graph/record/op_recorder.h"

#include <vector>

namespace duet {

// Runs the hooks of a host point with the recorder paused, and marks the place.
class CapturedStep::RecordingPoints : public StepObserver {
 public:
  RecordingPoints(StepObserver& inner, OpRecorder& recorder, std::vector<Moment>& moments)
      : inner_(inner), recorder_(recorder), moments_(moments) {}

  void after_backward(const StepView& context) override {
    at_split_point(context, Moment::kAfterBackward, [&] { inner_.after_backward(context); });
  }
  void before_optimizer_step(const StepView& context) override {
    at_split_point(context, Moment::kBeforeOptimizerStep, [&] { inner_.before_optimizer_step(context); });
  }
  void in_step(StepView& context) override { inner_.in_step(context); }

 private:
  template <class Call>
  void at_split_point(const StepView& context, Moment moment, Call call) {
    if (!inner_.splits()) return;
    std::vector<const void*> places;
    for (const auto& parameter : context.parameters) places.push_back(place(parameter.second.grad()));
    recorder_.mark_split_point();
    moments_.push_back(moment);
    recorder_.pause();
    call();
    recorder_.resume();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (place(context.parameters[i].second.grad()) != places[i]) {
        recorder_.fail("a hook put another tensor in the place of the gradient of '" + context.parameters[i].first +
                       "'; change the gradient in place (copy_, mul_, ...)");
      }
    }
  }
  static const void* place(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

  StepObserver& inner_;
  OpRecorder& recorder_;
  std::vector<Moment>& moments_;
};

}  // namespace duet
