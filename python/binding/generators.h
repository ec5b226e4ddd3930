#pragma once

#include <ATen/core/Tensor.h>
#include "python/binding/py.h"

namespace duet::python {

// States of generators that torch's default ones are not among, as tensors of bytes (duet.generators). They take the
// GIL.

// Of what the modules random and numpy.random draw from.
at::Tensor host_random_state();
void set_host_random_state(const at::Tensor& state);
// Of those that a loader has for itself.
at::Tensor loader_random_state(const py::object& loader);
void set_loader_random_state(const py::object& loader, const at::Tensor& state);

}  // namespace duet::python
