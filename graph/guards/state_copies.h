#pragma once

#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Generator.h>
#include "base/batch.h"
#include "base/detail/tensor_copies.h"
#include "base/state_dict.h"
#include "core/detail/step_executor.h"
#include "graph/record/step_program.h"

// What a step changes, copied and put back, to run it several times from one state.

namespace duet {

// Every tensor that the step changes; where hooks act in it also those that it reads, which they may change. Memory
// that several share is there once, whole.
NamedTensors state_of(const StepCode& step, const StepProgram& recording, bool hooks_act);

// The generators that a step draws from: the default ones, and its own.
class RandomStates {
 public:
  explicit RandomStates(const std::vector<at::Generator>& own = {});
  // One more, as it is now, if it is not among them.
  void add(const at::Generator& generator);
  void restore() const;
  void append_to(NamedTensors& tensors) const;

 private:
  StateDict standard_;
  std::vector<std::pair<at::Generator, at::Tensor>> own_;
};

// The gradients that parameters have: the tensors, not copies.
class Gradients {
 public:
  explicit Gradients(const NamedTensors& parameters);
  void put_back(const NamedTensors& parameters) const;

 private:
  std::vector<at::Tensor> gradients_;  // by parameter
};

}  // namespace duet
