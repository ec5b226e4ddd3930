#pragma once

#include "python/binding/py.h"

namespace duet::python {

// init_distributed() and what it gives.
void bind_distributed(py::module_& module);

}  // namespace duet::python
