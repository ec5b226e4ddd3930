#include "python/binding/generators.h"

namespace duet::python {

namespace {

py::object function(const char* name) { return py::module_::import("duet.generators").attr(name); }

}  // namespace

at::Tensor host_random_state() {
  const py::gil_scoped_acquire gil;
  return random_state_of(function("HOST"));
}

void set_host_random_state(const at::Tensor& state) {
  const py::gil_scoped_acquire gil;
  set_random_state_of(function("HOST"), state);
}

py::object generators_of(const py::object& loader) { return function("own")(loader); }

at::Tensor random_state_of(const py::object& generators) {
  return py::cast<at::Tensor>(function("states")(generators));
}

void set_random_state_of(const py::object& generators, const at::Tensor& state) {
  function("restore")(generators, state);
}

}  // namespace duet::python
