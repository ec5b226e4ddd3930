#pragma once

#include <vector>
#include "graph/graph_options.h"
#include "python/binding/py.h"

namespace duet::python {

// The reports of graph mode as Python objects.
py::list to_list(const std::vector<SignatureReport>& reports);

}  // namespace duet::python
