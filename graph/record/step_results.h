#pragma once

#include <utility>
#include <vector>
#include "core/train_context.h"

namespace duet {

// `result` with map(tensor) in the place of each tensor that it has.
template <class Map>
StepResult mapped(const StepResult& result, Map map) {
  const auto of = [&map](const at::Tensor& tensor) { return tensor.defined() ? map(tensor) : tensor; };
  StepResult made{of(result.loss), {}, of(result.grad_norm)};
  for (const auto& [name, tensor] : result.log) made.log.emplace_back(name, of(tensor));
  for (const NamedTensors& outputs : result.outputs) {
    NamedTensors& mapped_outputs = made.outputs.emplace_back();
    for (const auto& [name, tensor] : outputs) mapped_outputs.emplace_back(name, of(tensor));
  }
  return made;
}

// Every tensor that a step gives: its results and the gradients of its parameters.
inline std::vector<at::Tensor> results_of(const StepResult& output, const NamedTensors& parameters) {
  std::vector<at::Tensor> results;
  for (const auto& item : output.all()) results.push_back(item.second);
  for (const auto& parameter : parameters) {
    if (parameter.second.grad().defined()) results.push_back(parameter.second.grad());
  }
  return results;
}

}  // namespace duet
