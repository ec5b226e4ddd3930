#pragma once

#include "core/hook.h"
#include "python/binding/py.h"

namespace duet::python {

// What a hook in Python sees of a run: a TrainContext, lent to it for one call.
class Run {
 public:
  explicit Run(TrainContext& context) : context_(&context) {}
  // Throws ConfigError if the call is over.
  TrainContext& get() const;
  void end() { context_ = nullptr; }

 private:
  TrainContext* context_;
};

// What a hook's in_step sees, likewise.
class StepWindow {
 public:
  explicit StepWindow(StepView& view) : view_(&view) {}
  StepView& get() const;
  void end() { view_ = nullptr; }

 private:
  StepView* view_;
};

// Named tensors as a dict, and back.
py::dict to_dict(const NamedTensors& tensors);
py::dict to_dict(const StateDict& state);
// Throws ConfigError for a value that is no tensor, bool, int, float or str.
StateDict to_state(const py::handle& dict);

}  // namespace duet::python
