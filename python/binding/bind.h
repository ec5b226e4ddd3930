#pragma once

#include "python/binding/py.h"

// What the files of the binding add to the module.
namespace duet::python {

// duet's errors as Python exceptions: duet.ConfigError and its like, all of them duet.Error. Those of Python and of
// PyTorch pass through as what they are.
void bind_errors(py::module_& module);
// The optimizers, schedules, ways of clipping and loss scaling.
void bind_trainer_options(py::module_& module);
// init_distributed() and what it gives.
void bind_distributed(py::module_& module);
// What a hook sees.
void bind_context(py::module_& module);
// The built-in hooks and metrics: `duet.CheckpointHook(interval=100)` holds options, and each trainer makes its own
// hook of them.
void bind_hooks(py::module_& module);
void bind_metrics(py::module_& module);
// The trainers, and what explains their steps.
void bind_trainer(py::module_& module);
// duet.graph_step: the step of an existing loop, recorded and replayed, with an optimizer of torch.optim.
void bind_graph_step(py::module_& module);

}  // namespace duet::python
