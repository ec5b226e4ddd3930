#include "python/binding/host_state.h"
#include <cstring>
#include <ATen/PythonTorchFunctionTLS.h>

namespace duet::python {

namespace {

bool is_plain(PyObject* object) {
  return PyLong_Check(object) || PyFloat_Check(object) || PyUnicode_CheckExact(object);
}

uint64_t mixed(uint64_t sum, uint64_t part) { return (sum ^ part) * 0x9E3779B97F4A7C15ULL + (sum >> 29); }

// Its type and its bits: Python's hash is the same for -1 and -2, 1 and 1.0, 0.0 and -0.0.
uint64_t of_plain(PyObject* object) {
  uint64_t bits = 0;
  if (PyFloat_Check(object)) {
    const double value = PyFloat_AS_DOUBLE(object);
    std::memcpy(&bits, &value, sizeof(value));
  } else if (PyLong_Check(object)) {
    bits = static_cast<uint64_t>(PyLong_AsUnsignedLongLongMask(object));
  } else {
    bits = static_cast<uint64_t>(PyObject_Hash(object));
  }
  return mixed(reinterpret_cast<uint64_t>(Py_TYPE(object)), bits);
}

uint64_t of_attributes(const py::handle& module) {
  uint64_t sum = 0;
  const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module.ptr(), nullptr));
  if (!attributes) throw py::error_already_set();
  PyObject *name, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(attributes.ptr(), &position, &name, &value) != 0) {
    if (is_plain(value)) sum = mixed(sum, of_plain(value));
  }
  return sum;
}

}  // namespace

namespace {

// Calls visit(mode, its device), the latter null where it is not that of torch.set_default_device.
template <class Visit>
void for_each_function_mode(Visit visit) {
  using Modes = at::impl::PythonTorchFunctionTLS;
  for (int64_t i = 0; i < Modes::stack_len(); ++i) {
    const auto& held = Modes::get_stack_at(i);
    const py::handle mode(held->ptr(&held->pyinterpreter()));
    static const auto* device_context =
        new py::object(py::module_::import("torch.utils._device").attr("DeviceContext"));
    visit(mode, py::isinstance(mode, *device_context) ? py::object(mode.attr("device")) : py::object());
  }
}

}  // namespace

uint64_t HostState::function_modes() {
  uint64_t sum = 0;
  for_each_function_mode([&sum](const py::handle& mode, const py::object& device) {
    sum =
        mixed(sum, device ? static_cast<uint64_t>(py::hash(device)) : reinterpret_cast<uint64_t>(Py_TYPE(mode.ptr())));
  });
  return sum;
}

bool HostState::has_function_modes() {
  bool any = false;
  for_each_function_mode([&any](const py::handle&, const py::object& device) { any = any || !device; });
  return any;
}

uint64_t HostState::random_numbers() {
  static const auto* python = new py::object(py::module_::import("random").attr("getstate"));
  static const auto* numpy = new py::object(py::module_::import("numpy.random").attr("get_state"));
  const py::dict state = (*numpy)(py::arg("legacy") = false)["state"];
  const uint64_t sum = mixed(static_cast<uint64_t>(py::hash((*python)())), py::cast<uint64_t>(state["pos"]));
  return mixed(sum, py::cast<uint64_t>(state["key"][py::int_(0)]));
}

namespace {

// Of a number or text, or of those in a list; what else there is counts as the same.
uint64_t of_value(PyObject* value) {
  constexpr uint64_t kMissing = 0x5bd1e995, kNone = 0x1b873593, kOther = 0xcc9e2d51;
  if (value == nullptr) return kMissing;
  if (value == Py_None) return kNone;
  if (is_plain(value)) return of_plain(value);
  constexpr Py_ssize_t kLongest = 16;  // as in duet.host_numbers
  const bool is_list = PyList_CheckExact(value) || PyTuple_CheckExact(value);
  if (!is_list || PySequence_Fast_GET_SIZE(value) > kLongest) return kOther;
  uint64_t sum = 0;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(value, i);
    sum = mixed(sum, is_plain(item) ? of_plain(item) : kOther);
  }
  return sum;
}

PyObject* value_at(PyObject* owner, PyObject* key) {
  return key == Py_None ? PyCell_GET(owner) : PyDict_GetItem(owner, key);
}

}  // namespace

uint64_t HostState::referenced() const {
  static const auto* places_of = new py::object(py::module_::import("duet.host_numbers").attr("places_of"));
  for (bool is_new = places_ == nullptr;; is_new = true) {
    if (is_new) places_ = share((*places_of)(*functions_, *modules_));
    uint64_t sum = 0;
    bool replaced = false;
    for (const py::handle place : *places_) {
      PyObject* value = value_at(PyTuple_GET_ITEM(place.ptr(), 0), PyTuple_GET_ITEM(place.ptr(), 1));
      PyObject* container = PyTuple_GET_ITEM(place.ptr(), 2);
      replaced = replaced || (container != Py_None && container != value);
      sum = mixed(sum, of_value(value));
    }
    if (is_new || !replaced) return sum;
  }
}

uint64_t HostState::numbers() const {
  uint64_t sum = referenced();
  for (const py::handle module : *modules_) sum = mixed(sum, of_attributes(module));
  return sum;
}

}  // namespace duet::python
