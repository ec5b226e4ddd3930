#pragma once

#include <cstdint>
#include <functional>
#include "python/binding/py.h"

namespace duet::python {

// What decides about a step, or is moved by it, without any op. Each function gives another number if it moved, and is
// called under the GIL.
class HostState {
 public:
  // `functions`: a list of those that a step calls.
  HostState(SharedObject modules, SharedObject functions)
      : modules_(std::move(modules)), functions_(std::move(functions)) {}
  // The plain numbers and texts that modules have as attributes, and that the code of the step finds in closures,
  // globals and objects in them: a temperature, a counter.
  uint64_t numbers() const;
  void visit_kept(const std::function<void(const SharedObject&)>& visit) const {
    visit(functions_);
    if (places_) visit(places_);
  }
  // The function modes around the step (torch.overrides): the default device, and others.
  static uint64_t function_modes();
  // Whether there are others, which want to see every call.
  static bool has_function_modes();
  // Where the random numbers of Python and NumPy stand.
  static uint64_t random_numbers();

 private:
  uint64_t referenced() const;

  SharedObject modules_;  // a list
  SharedObject functions_;
  mutable SharedObject places_;  // duet.host_numbers.places_of
};

}  // namespace duet::python
