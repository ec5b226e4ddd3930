#pragma once

#include <cstdint>
#include <ATen/core/Tensor.h>
#include "python/binding/py.h"

namespace duet::python {

// States of generators that torch's default ones are not among, as tensors of bytes (duet.generators). They take the
// GIL.

// Of what the modules random and numpy.random draw from.
at::Tensor host_random_state();
void set_host_random_state(const at::Tensor& state);
// Another number once they have moved; takes a microsecond or two, under the GIL.
uint64_t host_random_place();
// Those that a loader holds; looking for them takes part of a millisecond.
py::object generators_of(const py::object& loader);
at::Tensor random_state_of(const py::object& generators);
void set_random_state_of(const py::object& generators, const at::Tensor& state);

}  // namespace duet::python
