#pragma once

#include <cstdint>
#include <string>
#include "optim/optimizers/optimizer_kind.h"
#include "python/binding/collected.h"
#include "python/binding/py.h"

namespace duet::python {

// step() of an optimizer in Python: part of the step, which is recorded with it once for each set of its numbers. Where
// it reads values back to the host, or its numbers change too often for that, it is called apart, after each step.
class PythonStep {
 public:
  // `may_be_apart`: else a step whose optimizer is not captured is not captured either.
  PythonStep(SharedObject optimizer, SharedObject hooks, bool may_be_apart)
      : optimizer_(std::move(optimizer)), hooks_(std::move(hooks)), may_be_apart_(may_be_apart) {}

  // Whose kernel calls step() unless it is called apart. This object must outlive it.
  OptimizerKind kind();
  // What it calls of Python.
  py::list code() const;

  // Before a step.
  void begin();
  // The step's code begins: the next kernel call is its first.
  void expect() { expected_ = true; }
  // The optimizer's numbers, which a recording has as constants.
  std::string graph_key();
  // After it.
  void call_if_apart() const;
  // Whether it is called apart from the next step on, but was not in this one.
  bool becomes_apart() const { return becomes_apart_ && !is_apart_; }

 private:
  void call();
  void note_numbers(const std::string& key);
  void put_apart(const std::string& reason);

  SharedObject optimizer_, hooks_;
  const bool may_be_apart_;
  bool expected_ = false, was_called_ = false;
  bool becomes_apart_ = false, is_apart_ = false;  // from the next step on; in this one
  std::string key_;                                // latest numbers
  int64_t steps_ = 0, early_changes_ = 0;          // with these; of numbers that came in few steps
};

}  // namespace duet::python
