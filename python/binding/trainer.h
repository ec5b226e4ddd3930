#pragma once

#include <memory>
#include <string>
#include <vector>
#include "core/trainer.h"
#include "graph/graph_options.h"
#include "python/binding/py.h"

namespace duet::python {

// StepExplanation and the reports of graph mode as Python objects.
py::list to_list(const BaseTrainer& trainer);
py::list to_list(const std::vector<SignatureReport>& reports);

}  // namespace duet::python
