#include "python/binding/host_state.h"

namespace duet::python {

namespace {

bool is_plain(PyObject* object) {
  return PyLong_Check(object) || PyFloat_CheckExact(object) || PyUnicode_CheckExact(object);
}

uint64_t mixed(uint64_t sum, uint64_t part) { return (sum ^ part) * 0x9E3779B97F4A7C15ULL + (sum >> 29); }

uint64_t of_attributes(const py::handle& module) {
  uint64_t sum = 0;
  const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module.ptr(), nullptr));
  if (!attributes) throw py::error_already_set();
  PyObject *name, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(attributes.ptr(), &position, &name, &value) != 0) {
    if (is_plain(value)) sum = mixed(sum, static_cast<uint64_t>(PyObject_Hash(value)));
  }
  return sum;
}

}  // namespace

uint64_t HostState::random_numbers() {
  static const auto* python = new py::object(py::module_::import("random").attr("getstate"));
  static const auto* numpy = new py::object(py::module_::import("numpy.random").attr("get_state"));
  const py::dict state = (*numpy)(py::arg("legacy") = false)["state"];
  const uint64_t sum = mixed(static_cast<uint64_t>(py::hash((*python)())), py::cast<uint64_t>(state["pos"]));
  return mixed(sum, py::cast<uint64_t>(state["key"][py::int_(0)]));
}

uint64_t HostState::attributes() const {
  uint64_t sum = 0;
  for (const py::handle module : *modules_) sum = mixed(sum, of_attributes(module));
  return sum;
}

}  // namespace duet::python
