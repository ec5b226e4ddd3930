#pragma once

#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Generator.h>
#include "base/batch.h"
#include "base/state_dict.h"
#include "core/detail/step_executor.h"
#include "graph/record/step_program.h"

// What a step changes, copied and put back, to run it several times from one state.

namespace duet {

// Every tensor that the step changes. Memory that several share is there once, whole.
NamedTensors state_of(const StepCode& step, const StepProgram& recording);

// On the tensors' device, or on the host if the device has no memory left: a model that just fits is compared too.
NamedTensors copy_of(const NamedTensors& tensors);
// The values of `saved` into `live`, and those of `live` into `saved`.
void swap_values(const NamedTensors& saved, const NamedTensors& live);
void restore(const NamedTensors& saved, const NamedTensors& live);
// What did not change needs no write, and an expanded buffer would refuse one.
void restore(const at::Tensor& saved, const at::Tensor& live);

// Names of the tensors that differ, or that only one list has.
std::vector<std::string> differences(const NamedTensors& a, const NamedTensors& b);

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
