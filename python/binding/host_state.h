#pragma once

#include <cstdint>
#include "python/binding/py.h"

namespace duet::python {

// What Python code of a step may move without any op: the random numbers of Python and NumPy, and the plain numbers and
// texts that modules have as attributes (counters).
class HostState {
 public:
  explicit HostState(SharedObject modules) : modules_(std::move(modules)) {}
  // Another number if it moved. Under the GIL.
  uint64_t fingerprint() const;

 private:
  SharedObject modules_;  // a list
};

}  // namespace duet::python
