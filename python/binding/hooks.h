#pragma once

#include <memory>
#include "core/hook.h"
#include "metrics/metric.h"
#include "python/binding/py.h"

namespace duet::python {

// The built-in hooks and metrics: `duet.CheckpointHook(interval=100)` holds options, and each trainer makes its own
// hook of them.
void bind_hooks(py::module_& module);
void bind_metrics(py::module_& module);

// A hook of a trainer: made of a built-in one's options, or around an object of a Python class, whose methods named
// like a point are called there. Throws ConfigError for anything else.
std::unique_ptr<Hook> to_hook(const py::handle& object);
// Likewise a metric: an object of a Python class has names(), reset(), add(batch, outputs, weight), compute().
std::unique_ptr<Metric> to_metric(const py::handle& object);

}  // namespace duet::python
