#include "python/binding/host_numbers.h"
#include <algorithm>
#include <array>
#include <bit>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Generator.h>

namespace duet::python {

namespace {

bool is_plain(PyObject* object) { return PyLong_Check(object) || PyFloat_Check(object) || PyUnicode_Check(object); }

// Its type and its bits: Python's hash is the same for -1 and -2, 1 and 1.0, 0.0 and -0.0.
uint64_t of_plain(PyObject* object) {
  uint64_t bits = 0;
  if (PyFloat_Check(object)) {
    bits = std::bit_cast<uint64_t>(PyFloat_AS_DOUBLE(object));
  } else if (PyLong_Check(object)) {
    int overflow = 0;
    bits = static_cast<uint64_t>(PyLong_AsLongLongAndOverflow(object, &overflow));
    if (overflow != 0) bits = py::hash(py::reinterpret_steal<py::object>(PyNumber_ToBase(object, 16)));
  } else {
    bits = static_cast<uint64_t>(PyUnicode_Type.tp_hash(object));  // a subclass may have another
  }
  return mixed(reinterpret_cast<uint64_t>(Py_TYPE(object)), bits);
}

// Of duet.host_numbers.CONSTANTS.
bool is_constant(PyObject* object) {
  static const auto* types = new py::tuple(py::module_::import("duet.host_numbers").attr("CONSTANTS"));
  return std::ranges::any_of(*types, [object](const py::handle& type) {
    return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(type.ptr())) != 0;
  });
}

PyTypeObject* deque_type() {
  static const auto* type = new py::object(py::module_::import("collections").attr("deque"));
  return reinterpret_cast<PyTypeObject*>(type->ptr());
}

// Of a set the sum, of a deque a number that goes by the order; but for tensors, which a step may gather there.
uint64_t of_collection(PyObject* object) {
  const bool is_set = PyAnySet_Check(object);
  PyTypeObject* const type = is_set ? &PySet_Type : deque_type();  // a subclass may run code of its own
  static int deep = 0;                                             // a deque may be in itself
  if (type->tp_as_sequence->sq_length(object) > kMostItems || deep == 4) return reinterpret_cast<uint64_t>(object);
  ++deep;
  const auto done = c10::make_scope_exit([] { --deep; });
  uint64_t sum = 0;
  const auto items = py::reinterpret_steal<py::object>(type->tp_iter(object));
  while (const auto item = py::reinterpret_steal<py::object>(PyIter_Next(items.ptr()))) {
    if (is_tensor(item.ptr())) continue;
    const uint64_t known = of_value(item.ptr());
    const uint64_t number = known != 0 ? known : reinterpret_cast<uint64_t>(item.ptr());
    sum = is_set ? sum + mixed(number, 1) : mixed(sum, number);
  }
  return sum;
}

// Those of NumPy by their bytes, devices by what they are; of an enum's members and of dtypes there is one each.
uint64_t of_constant(PyObject* object) {
  uint64_t bits = reinterpret_cast<uint64_t>(object);
  if (PyAnySet_Check(object) || PyType_IsSubtype(Py_TYPE(object), deque_type()) != 0) {
    bits = of_collection(object);
  } else if (PyBytes_Check(object)) {
    bits = static_cast<uint64_t>(PyBytes_Type.tp_hash(object));
  } else if (Py_buffer bytes;
             PyObject_CheckBuffer(object) != 0 && PyObject_GetBuffer(object, &bytes, PyBUF_FULL_RO) == 0) {
    std::array<char, 4096> copy;
    const bool fits = bytes.len <= std::ssize(copy) && PyBuffer_ToContiguous(copy.data(), &bytes, bytes.len, 'C') == 0;
    if (fits) bits = std::hash<std::string_view>()({copy.data(), static_cast<std::size_t>(bytes.len)});
    PyBuffer_Release(&bytes);
  } else if (THPGenerator_Check(object)) {
    bits = reinterpret_cast<uint64_t>(reinterpret_cast<THPGenerator*>(object)->cdata.unsafeGetGeneratorImpl());
  } else if (THPDevice_Check(object)) {
    bits = static_cast<uint64_t>(PyObject_Hash(object));
  } else if (PyComplex_Check(object)) {
    const Py_complex number = PyComplex_AsCComplex(object);
    bits = mixed(std::bit_cast<uint64_t>(number.real), std::bit_cast<uint64_t>(number.imag));
  } else if (PyRange_Check(object) || PySlice_Check(object) || PyNumber_Check(object) != 0 ||
             std::string_view(Py_TYPE(object)->tp_name).starts_with("datetime.")) {
    const auto text = py::reinterpret_steal<py::object>(PyObject_Repr(object));
    if (text) bits = static_cast<uint64_t>(PyObject_Hash(text.ptr()));
  }
  PyErr_Clear();
  return mixed(reinterpret_cast<uint64_t>(Py_TYPE(object)), bits);
}

// Another one for each object that there has been: a function's place can be that of one that is gone.
uint64_t serial_of(PyObject* object) {
  static auto* const known = new std::unordered_map<PyObject*, std::pair<py::object, uint64_t>>();
  static uint64_t count = 0;
  auto& [reference, serial] = (*known)[object];
  if (reference && PyWeakref_GET_OBJECT(reference.ptr()) == object) return serial;
  reference = py::reinterpret_steal<py::object>(PyWeakref_NewRef(object, nullptr));
  if (!reference) PyErr_Clear();
  return serial = reference ? ++count : 0;
}

uint64_t of_callable(PyObject* object) {
  static const auto* module = new py::object(py::module_::import("torch.nn").attr("Module"));  // which HostState holds
  const bool is_module = PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(module->ptr())) != 0;
  return mixed(reinterpret_cast<uint64_t>(object),
               mixed(reinterpret_cast<uint64_t>(Py_TYPE(object)), is_module ? 0 : serial_of(object)));
}

}  // namespace

// One of the user's own type may run code of its own when it is asked.
uint64_t of_key(PyObject* key) {
  if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) return reinterpret_cast<uint64_t>(key);
  return static_cast<uint64_t>(PyObject_Hash(key));
}

uint64_t of_value(PyObject* value, int deepest) {
  constexpr uint64_t kMissing = 0x5bd1e995, kNone = 0x1b873593, kOther = 0;
  if (value == nullptr) return kMissing;
  if (value == Py_None) return kNone;
  if (is_plain(value)) return of_plain(value);
  if (PyCallable_Check(value) != 0) return of_callable(value);
  if (!PyList_Check(value) && !PyTuple_Check(value)) return is_constant(value) ? of_constant(value) : kOther;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
  if (size > kMostItems || deepest == 0) return kOther;
  uint64_t sum = 1;
  for (Py_ssize_t i = 0; i < size; ++i) {
    const uint64_t number = of_value(PySequence_Fast_GET_ITEM(value, i), deepest - 1);
    if (number != kOther) sum = mixed(sum, mixed(number, static_cast<uint64_t>(i)));
  }
  return sum;
}

bool is_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

namespace {

// Submodules, hooks, parameters and buffers, and hooks of these; of the user's own dicts the first entries.
enum class Dict { kOfTensors, kOfTorch, kOwn };

Dict kind_of(PyObject* name) {
  for (const char* registered : {"_parameters", "_buffers"}) {
    if (PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, registered) == 0) return Dict::kOfTensors;
  }
  return PyUnicode_Check(name) && PyUnicode_READ_CHAR(name, 0) == '_' ? Dict::kOfTorch : Dict::kOwn;
}

uint64_t of_dict(PyObject* dict, Dict kind = Dict::kOfTorch) {
  const Py_ssize_t most = kind == Dict::kOwn ? 512 : PY_SSIZE_T_MAX;
  uint64_t sum = 0;
  PyObject *key, *value;
  for (Py_ssize_t position = 0, i = 0; i < most && PyDict_Next(dict, &position, &key, &value) != 0; ++i) {
    if (PyCallable_Check(value) != 0) {
      sum = mixed(sum, mixed(of_key(key), of_callable(value)));
    } else if (is_tensor(value)) {
      const uint64_t requires_grad = THPVariable_Unpack(value).requires_grad() ? 1 : 0;
      if (kind == Dict::kOfTensors)
        sum = mixed(sum, mixed(of_key(key), reinterpret_cast<uint64_t>(value)) + requires_grad);
      const auto* tensor = reinterpret_cast<const THPVariable*>(value);
      for (PyObject* hooks : {tensor->backward_hooks, tensor->post_accumulate_grad_hooks})
        sum = mixed(sum, hooks != nullptr && PyDict_Check(hooks) ? of_dict(hooks) : 0);
    }
  }
  return sum;
}

// Lists are settings there: a user's may fill up.
bool is_torchs(PyTypeObject* type) {
  static auto* const known = new std::unordered_map<PyTypeObject*, bool>();
  const auto [found, is_new] = known->try_emplace(type, false);
  if (!is_new) return found->second;
  Py_INCREF(type);
  const py::object module = py::getattr(reinterpret_cast<PyObject*>(type), "__module__", py::none());
  return found->second = py::isinstance<py::str>(module) && py::cast<std::string>(module).starts_with("torch.");
}

uint64_t of_attribute(PyObject* name, PyObject* value, bool has_settings) {
  if (is_plain(value) || PyTuple_Check(value) || (has_settings && PyList_CheckExact(value))) return of_value(value);
  if (PyDict_Check(value)) return of_dict(value, kind_of(name));
  if (PyCallable_Check(value) != 0) return of_callable(value);
  return is_constant(value) ? of_constant(value) : 0;
}

}  // namespace

uint64_t of_module(const py::handle& module, bool of_model) {
  PyTypeObject* const type = Py_TYPE(module.ptr());
  uint64_t sum = reinterpret_cast<uint64_t>(type);
  const auto attributes = py::reinterpret_steal<py::object>(PyObject_GenericGetDict(module.ptr(), nullptr));
  if (!attributes) throw py::error_already_set();
  const bool has_settings = is_torchs(type);
  PyObject *name, *value;
  Py_ssize_t position = 0;
  while (PyDict_Next(attributes.ptr(), &position, &name, &value) != 0) {
    if (of_model && PyUnicode_Check(name) && PyUnicode_CompareWithASCIIString(name, "training") == 0) continue;
    if (const uint64_t number = of_attribute(name, value, has_settings)) sum = mixed(sum, mixed(of_key(name), number));
  }
  return sum;
}

uint64_t of_global_hooks() {
  static const auto* dicts = [] {
    auto* found = new std::vector<py::object>();
    const py::module_ module = py::module_::import("torch.nn.modules.module");
    for (const char* name :
         {"_global_forward_pre_hooks", "_global_forward_hooks", "_global_backward_pre_hooks", "_global_backward_hooks"})
      found->push_back(module.attr(name));
    return found;
  }();
  uint64_t sum = 0;
  for (const py::object& dict : *dicts) sum = mixed(sum, of_dict(dict.ptr()));
  return sum;
}

bool is_object(PyObject* value, uint64_t number) {
  if (value == nullptr || PyList_Check(value) || PyTuple_Check(value) || is_tensor(value)) return false;
  if (PyCallable_Check(value) == 0) return number == 0;
  return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) != 0 && !is_constant(value);  // others are functions
}

}  // namespace duet::python
