#include "python/binding/generators.h"

namespace duet::python {

namespace {

py::object function(const char* name) { return py::module_::import("duet.generators").attr(name); }

at::Tensor state_of(const py::object& generators) { return py::cast<at::Tensor>(function("states")(generators)); }

}  // namespace

at::Tensor host_random_state() {
  const py::gil_scoped_acquire gil;
  return state_of(function("HOST"));
}

void set_host_random_state(const at::Tensor& state) {
  const py::gil_scoped_acquire gil;
  function("restore")(function("HOST"), state);
}

at::Tensor loader_random_state(const py::object& loader) {
  const py::gil_scoped_acquire gil;
  return state_of(function("own")(loader));
}

void set_loader_random_state(const py::object& loader, const at::Tensor& state) {
  const py::gil_scoped_acquire gil;
  function("restore")(function("own")(loader), state);
}

}  // namespace duet::python
