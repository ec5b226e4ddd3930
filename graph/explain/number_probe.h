#pragma once

#include <functional>
#include <string>
#include <vector>
#include "core/trainer.h"
#include "graph/explain/step_sandbox.h"

namespace duet {

// Finds out what each hyper-parameter does to a captured step: another value of it must change what a replay leaves in
// weights and state. A number that reached the recording as a host number does not.
class NumberProbe {
 public:
  using RunStep = std::function<void()>;  // from the state that there is, begin() included

  NumberProbe(TrainStep& step, StepSandbox& sandbox, RunStep replay, RunStep eager)
      : step_(step), sandbox_(sandbox), replay_(std::move(replay)), eager_(std::move(eager)) {}

  // Of every number of every group. Numbers that follow a schedule keep the value of the present step meanwhile.
  std::vector<StepExplanation::Number> probe_all();

 private:
  struct Number {
    std::size_t group;
    std::string name;
    double value, other;
  };
  using Left = std::vector<std::string>;  // bits of all that steps have left
  std::vector<Number> held_numbers();
  Left left_by(const RunStep& run);
  bool changes(const RunStep& run, Left& as_it_is, const Number& number);
  bool set_another(Number& number);
  StepExplanation::Reach reach_of(Number number);

  TrainStep& step_;
  StepSandbox& sandbox_;
  RunStep replay_, eager_;
  Left replayed_, run_;  // with the numbers as they are; filled when they are needed
};

}  // namespace duet
