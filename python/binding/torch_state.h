#pragma once

#include <string>
#include <vector>
#include "python/binding/py.h"

namespace duet::python {

// What torch's optimizer holds of one parameter, by slot.
struct GivenState {
  std::string parameter;
  std::vector<std::string> names;                                         // torch's; empty: it has none
  std::vector<at::Tensor> own;                                            // into which it is to be copied
  std::vector<at::Tensor> tensors = std::vector<at::Tensor>(own.size());  // undefined: torch has none yet
};

// From optimizer.state[parameter]. Throws ConfigError for what cannot be its state.
void read_state(const py::object& state, GivenState& given);

// A parameter may have been given the state of another one, whose tensors are written to: copies these. Throws
// ConfigError where two parameters have the same.
void make_independent(std::vector<GivenState>& given);

}  // namespace duet::python
