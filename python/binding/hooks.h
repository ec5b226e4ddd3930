#pragma once

#include <memory>
#include "core/hook.h"
#include "metrics/metric.h"
#include "python/binding/py.h"

namespace duet::python {

// A hook of a trainer: made of a built-in one's options, or around an object of a Python class, whose methods named
// like a point are called there. Throws ConfigError for anything else.
std::unique_ptr<Hook> to_hook(const py::handle& object);
// Likewise a metric: an object of a Python class has names(), reset(), add(batch, outputs, weight), compute().
std::unique_ptr<Metric> to_metric(const py::handle& object);

}  // namespace duet::python
