#pragma once

#include "python/binding/py.h"

namespace duet::python {

// duet.graph_step: the step of an existing loop, recorded and replayed, with an optimizer of torch.optim.
void bind_graph_step(py::module_& module);

}  // namespace duet::python
