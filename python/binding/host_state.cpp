#include "python/binding/host_state.h"
#include <algorithm>
#include <array>
#include <bit>
#include <string_view>
#include <vector>
#include <ATen/PythonTorchFunctionTLS.h>
#include <structmember.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Generator.h>
#include "base/detail/bits.h"
#include "python/binding/generators.h"

namespace duet::python {

namespace {

bool is_plain(PyObject* object) { return PyLong_Check(object) || PyFloat_Check(object) || PyUnicode_Check(object); }

uint64_t mixed(uint64_t sum, uint64_t part) { return (sum ^ part) * 0x9E3779B97F4A7C15ULL + (sum >> 29); }

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

// Those of NumPy by their bytes, devices by what they are; of an enum's members and of dtypes there is one each.
uint64_t of_constant(PyObject* object) {
  uint64_t bits = reinterpret_cast<uint64_t>(object);
  if (PyBytes_Check(object)) {
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
  } else if (PyRange_Check(object) || PySlice_Check(object) || PyAnySet_Check(object) || PyNumber_Check(object) != 0) {
    const auto text = py::reinterpret_steal<py::object>(PyObject_Repr(object));
    if (text) bits = static_cast<uint64_t>(PyObject_Hash(text.ptr()));
  }
  PyErr_Clear();
  return mixed(reinterpret_cast<uint64_t>(Py_TYPE(object)), bits);
}

// One of the user's own type may run code of its own when it is asked.
uint64_t of_key(PyObject* key) {
  if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key)) return reinterpret_cast<uint64_t>(key);
  return static_cast<uint64_t>(PyObject_Hash(key));
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

constexpr Py_ssize_t kMost = 64;  // items, as in duet.host_numbers, and as deep
constexpr int kDeepest = 4;
constexpr uint64_t kAll = ~uint64_t{0};  // no key's hash

// Of a number, text, constant or function, or of those in a list or tuple; what else there is does not count: a
// cache of tensors may grow.
uint64_t of_value(PyObject* value, int deepest = kDeepest) {
  constexpr uint64_t kMissing = 0x5bd1e995, kNone = 0x1b873593, kOther = 0;
  if (value == nullptr) return kMissing;
  if (value == Py_None) return kNone;
  if (is_plain(value)) return of_plain(value);
  if (PyCallable_Check(value) != 0) return of_callable(value);
  if (!PyList_Check(value) && !PyTuple_Check(value)) return is_constant(value) ? of_constant(value) : kOther;
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(value);
  if (size > kMost || deepest == 0) return kOther;
  uint64_t sum = 1;
  for (Py_ssize_t i = 0; i < size; ++i) {
    const uint64_t number = of_value(PySequence_Fast_GET_ITEM(value, i), deepest - 1);
    if (number != kOther) sum = mixed(sum, mixed(number, static_cast<uint64_t>(i)));
  }
  return sum;
}

// By its type alone: an object may say of itself what it likes.
bool is_tensor(PyObject* object) {
  return PyType_IsSubtype(Py_TYPE(object), reinterpret_cast<PyTypeObject*>(THPVariableClass)) != 0;
}

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

// `of_model`: its training flag is no number, evaluations change it.
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

// Those that torch calls for every module.
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

uint64_t HostState::random_numbers() const {
  const uint64_t of_all = host_random_place();
  if (!generators_ || py::len(*generators_) == 0) return of_all;
  return mixed(of_all, std::hash<std::string>()(bits_hash(random_state_of(*generators_))));
}

namespace {

PyObject* dict_of_class(PyTypeObject* type) {
#if PY_VERSION_HEX >= 0x030C0000
  return PyType_GetDict(type);
#else
  return Py_NewRef(type->tp_dict);
#endif
}

// Of a cell, an item, or an attribute of an object by its dict, of a class or in a slot; null if there is none.
PyObject* value_at(PyObject* owner, PyObject* key) {
  if (Py_TYPE(key) == &PyMemberDescr_Type) {
    if (reinterpret_cast<PyMemberDescrObject*>(key)->d_member->type != T_OBJECT_EX) return nullptr;
    // Of a slot, which goes on holding what it gives.
    PyObject* const slot = Py_TYPE(key)->tp_descr_get(key, owner, reinterpret_cast<PyObject*>(Py_TYPE(owner)));
    if (slot == nullptr) PyErr_Clear();
    Py_XDECREF(slot);
    return slot;
  }
  if (PyCell_Check(owner)) return PyCell_GET(owner);
  if (PyDict_Check(owner)) return PyDict_GetItem(owner, key);
  if (PyList_Check(owner) || PyTuple_Check(owner)) {
    const Py_ssize_t index = PyLong_AsSsize_t(key);
    return 0 <= index && index < PySequence_Fast_GET_SIZE(owner) ? PySequence_Fast_GET_ITEM(owner, index) : nullptr;
  }
  if (PyType_Check(owner)) {
    const auto attributes = py::reinterpret_steal<py::object>(dict_of_class(reinterpret_cast<PyTypeObject*>(owner)));
    return PyDict_GetItem(attributes.ptr(), key);
  }
  return nullptr;
}

}  // namespace

void HostState::add(const py::object& function) {
  py::cast<py::list>(*functions_).append(function);
  places_.reset();
}

void HostState::remove(const py::list& functions) {
  py::list kept;
  for (const py::handle function : *functions_) {
    if (std::ranges::none_of(functions, [&](const py::handle& removed) { return removed.is(function); }))
      kept.append(function);
  }
  functions_ = share(std::move(kept));
  places_.reset();
}

void HostState::look_around() const {
  static const auto* watched = new py::object(py::module_::import("duet.host_numbers").attr("watched"));
  const py::tuple found = (*watched)(*model_, *functions_);
  own_code_ = share(py::list(found[0]));
  modules_ = share(py::list(found[1]));
  modules_of_model_ = py::len(py::list(model_->attr("modules")()));
  places_ = share(found[2]);
  generators_ = share(found[3]);
  sees_all_ = py::cast<bool>(found[4]);
  keys_ = share(found[5]);
}

namespace {

// What the search would look into, where it has found nothing of the kind.
bool is_object(PyObject* value, uint64_t number) {
  if (value == nullptr || PyList_Check(value) || PyTuple_Check(value) || is_tensor(value)) return false;
  if (PyCallable_Check(value) == 0) return number == 0;
  return PyType_HasFeature(Py_TYPE(value), Py_TPFLAGS_HEAPTYPE) != 0 && !is_constant(value);  // others are functions
}

}  // namespace

// Of numbers in the places; none if another container lies in one of them.
std::optional<uint64_t> HostState::referenced() const {
  uint64_t sum = 0;
  has_new_object_ = false;
  for (const py::handle place : *places_) {
    PyObject* value = value_at(PyTuple_GET_ITEM(place.ptr(), 0), PyTuple_GET_ITEM(place.ptr(), 1));
    PyObject* container = PyTuple_GET_ITEM(place.ptr(), 2);
    if (container != Py_None && container != value) return std::nullopt;
    if (container != Py_None) sum = mixed(sum, reinterpret_cast<uint64_t>(Py_TYPE(value)));  // it may have no numbers
    if (PyTuple_GET_ITEM(place.ptr(), 3) != Py_True) continue;
    const uint64_t number = value != nullptr && PyDict_Check(value) ? of_items(value) : of_value(value);
    if (container == Py_None && is_object(value, number)) return std::nullopt;
    if (value != nullptr && PyList_Check(value)) count_objects(value);
    sum = mixed(sum, number);
  }
  if (has_new_object_) return std::nullopt;
  return sum;
}

// But for what a loop counts in there while each step is checked: what reads it is found by that. What the code names
// counts whatever it does; and which tensors there are, but for those that the step puts there, as into a cache.
uint64_t HostState::of_items(PyObject* dict) const {
  constexpr int64_t kFirst = 512, kQuick = 16;  // calls
  if (PyDict_GET_SIZE(dict) > kMost) return 0;
  const auto [found, is_new] = items_.try_emplace(dict);
  std::unordered_map<uint64_t, Item>& known = found->second;
  uint64_t sum = 2, tensors = 1;
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(dict, &position, &key, &value) != 0;) {
    const uint64_t number = of_value(value, 0);
    const bool now_object = is_object(value, number);
    Item& item = known.try_emplace(of_key(key), Item{number, now_object && is_new}).first->second;
    const bool was_object = std::exchange(item.is_object, now_object);
    has_new_object_ = has_new_object_ || (now_object && !was_object);
    if (is_tensor(value)) tensors = mixed(tensors, of_key(key));
    if (number == 0) continue;
    const bool is_named = PyUnicode_CheckExact(key) && PySet_Contains(keys_->ptr(), key) == 1;
    if (std::exchange(item.number, number) != number && calls_ <= kFirst && !is_named) {
      item.quick_changes = calls_ - std::exchange(item.changed, calls_) < kQuick ? item.quick_changes + 1 : 0;
    }
    if (item.quick_changes < 3) sum = mixed(sum, mixed(of_key(key), number));
  }
  Item& all = known.try_emplace(kAll, Item{.number = tensors, .counted = tensors}).first->second;
  if (std::exchange(all.number, tensors) != tensors && !after_step_) all.counted = tensors;
  return mixed(sum, all.counted);
}

void HostState::count_objects(PyObject* list) const {
  uint64_t objects = 0;
  for (Py_ssize_t i = 0; i < std::min(kMost, PyList_GET_SIZE(list)); ++i) {
    PyObject* const value = PyList_GET_ITEM(list, i);
    objects += is_object(value, of_value(value, 0)) ? 1 : 0;
  }
  Item& all = items_[list].try_emplace(kAll, Item{objects}).first->second;
  if (std::exchange(all.number, objects) != objects && !after_step_) has_new_object_ = true;
}

// Whether the model has modules or hooks that are not looked at.
bool HostState::has_new_code() const {
  static const auto* own_code = new py::object(py::module_::import("duet.host_numbers").attr("own_code"));
  std::size_t i = 0;
  for (const py::handle part : (*own_code)(*model_)) {
    if (i >= py::len(*own_code_) || !part.is((*own_code_)[py::int_(i++)])) return true;
  }
  return i < py::len(*own_code_);
}

uint64_t HostState::numbers(bool after_step) const {
  constexpr int64_t kQuick = 16;
  after_step_ = after_step;
  ++calls_;
  const auto sum = [this](uint64_t of_places) {
    uint64_t sum = mixed(of_places, of_global_hooks());
    std::size_t i = 0;
    for (const py::handle module : *modules_) sum = mixed(sum, of_module(module, i++ < modules_of_model_));
    return sum;
  };
  if (places_) {
    const std::optional<uint64_t> of_places = referenced();
    const uint64_t now = sum(of_places.value_or(0));
    if (of_places && (now == latest_ || !has_new_code())) return latest_ = now;
  }
  quick_looks_ = calls_ - std::exchange(looked_, calls_) < kQuick ? quick_looks_ + 1 : 0;
  if (quick_looks_ > kQuick) {  // another container at each step
    sees_all_ = false;
    return latest_;
  }
  look_around();
  return latest_ = sum(referenced().value_or(0));
}

}  // namespace duet::python
