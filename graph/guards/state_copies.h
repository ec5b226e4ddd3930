#pragma once

#include <string>
#include <vector>
#include "base/batch.h"
#include "base/state_dict.h"
#include "graph/detail/captured_step.h"

// What a step changes, copied and put back, to run it several times from one state.

namespace duet {

// Every tensor that the step changes. Memory that several share is there once, whole.
NamedTensors state_of(const StepCode& step, const CapturedStep& captured);

// On the tensors' device, or on the host if the device has no memory left: a model that just fits is compared too.
NamedTensors copy_of(const NamedTensors& tensors);
// The values of `saved` into `live`, and those of `live` into `saved`.
void swap_values(NamedTensors& saved, const NamedTensors& live);
void restore(const NamedTensors& saved, const NamedTensors& live);

// Names of the tensors that differ, or that only one list has.
std::vector<std::string> differences(const NamedTensors& a, const NamedTensors& b);

// The generators that a step draws from.
struct RandomStates {
  explicit RandomStates(const CapturedStep& step);
  void restore(const CapturedStep& step) const;
  void append_to(NamedTensors& tensors) const;

  StateDict standard;
  std::vector<at::Tensor> own;
};

}  // namespace duet
