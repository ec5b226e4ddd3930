#pragma once

#include <cstdint>
#include <string>
#include "core/train_context.h"
#include "optim/optimizers/optimizer_kind.h"
#include "python/binding/collected.h"
#include "python/binding/py.h"

namespace duet::python {

// step() of an optimizer in Python. It is part of the step, recorded with it once for each set of its numbers; or,
// where that gets nowhere, it is called apart, after each step.
class PythonStep {
 public:
  // `hooks`: the dicts of step()'s hooks. `may_be_apart`: else a step whose optimizer is not captured is not captured
  // either.
  PythonStep(SharedObject optimizer, SharedObject hooks, bool may_be_apart)
      : optimizer_(std::move(optimizer)), hooks_(std::move(hooks)), may_be_apart_(may_be_apart) {}

  // Whose kernel calls step() unless it is called apart. This object must outlive it.
  OptimizerKind kind();
  // What it calls of Python.
  py::list code() const;
  // The optimizer's numbers, which a recording has as constants.
  std::string graph_key() const;

  // Before a step, in the loop's grad mode; so many of those before were replayed. Whether it is called apart from this
  // one on.
  bool begin(Mode mode, int64_t replays);
  // The step's code begins: the next kernel call is its first.
  void expect() { expected_ = true; }
  // After it.
  void call_if_apart() const;
  // While a step is explained nothing is trained.
  void leave_out(bool on) { is_left_out_ = on; }

 private:
  enum class Way { kRecorded, kLeaving, kApart };  // kLeaving: apart from the next step on

  void call();
  void leave(const std::string& reason);

  SharedObject optimizer_, hooks_;
  const bool may_be_apart_;
  Way way_ = Way::kRecorded;
  bool expected_ = false, is_left_out_ = false, grad_mode_ = true;
  Mode mode_ = Mode::kGraph;
  int64_t steps_ = 0;  // in graph mode
};

}  // namespace duet::python
