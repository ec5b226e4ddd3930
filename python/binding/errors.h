#pragma once

#include "python/binding/py.h"

namespace duet::python {

// duet's errors as Python exceptions: duet.ConfigError and its like, all of them duet.Error. Those of Python and of
// PyTorch pass through as what they are.
void bind_errors(py::module_& module);

}  // namespace duet::python
