#pragma once

#include <cstdint>
#include "python/binding/py.h"

namespace duet::python {

// What decides about a step, or is moved by it, without any op. Each function gives another number if it moved, and is
// called under the GIL.
class HostState {
 public:
  explicit HostState(SharedObject modules) : modules_(std::move(modules)) {}
  // The plain numbers and texts that modules have as attributes: a temperature, a counter.
  uint64_t attributes() const;
  // Where the random numbers of Python and NumPy stand.
  static uint64_t random_numbers();

 private:
  SharedObject modules_;  // a list
};

}  // namespace duet::python
