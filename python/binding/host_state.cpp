#include "python/binding/host_state.h"
#include <algorithm>
#include <ATen/PythonTorchFunctionTLS.h>
#include <structmember.h>
#include "base/detail/bits.h"
#include "python/binding/generators.h"
#include "python/binding/host_numbers.h"

namespace duet::python {

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
  std::unordered_map<PyObject*, Container> known;
  for (const py::handle place : *places_) {
    for (const int part : {0, 2}) {  // others may be gone, and their addresses be those of new ones
      if (auto node = containers_.extract(PyTuple_GET_ITEM(place.ptr(), part))) known.insert(std::move(node));
    }
  }
  containers_ = std::move(known);
  generators_ = share(found[3]);
  sees_all_ = py::cast<bool>(found[4]);
  keys_ = share(found[5]);
}

namespace {

constexpr int64_t kQuick = 16;  // calls of numbers()

// Whether a place that had a number holds what the search is to look into. A list may be in itself.
bool is_new_container(PyObject* value, uint64_t number, int deepest = 4) {
  if (value == nullptr || deepest == 0) return false;
  if (!PyList_Check(value) && !PyTuple_Check(value)) return PyDict_Check(value) || is_object(value, number);
  for (Py_ssize_t i = 0; i < std::min(kMostItems, PySequence_Fast_GET_SIZE(value)); ++i) {
    PyObject* const item = PySequence_Fast_GET_ITEM(value, i);
    if (is_tensor(item) || PyCallable_Check(item) != 0 || is_new_container(item, of_value(item, 0), deepest - 1))
      return true;
  }
  return false;
}

}  // namespace

// Whether another number counts at its step: not what a loop has moved three times, less than so many calls apart, in
// the first calls, whose steps are checked: what reads it is found by that.
bool HostState::counts(Item& item, uint64_t number, int64_t apart, int64_t first) const {
  if (std::exchange(item.number, number) != number && calls_ <= first) {
    item.quick_changes = calls_ - std::exchange(item.changed, calls_) < apart ? item.quick_changes + 1 : 0;
  }
  return item.quick_changes < 3;
}

// Of what is in the places; none if another container lies in one of them. What the step itself has gathered counts
// once the loop moves any of it.
std::optional<uint64_t> HostState::referenced() const {
  uint64_t sum = 0, gathered = 0;
  has_new_object_ = false;
  gathering_.clear();
  for (const py::handle place : *places_) {
    PyObject *owner = PyTuple_GET_ITEM(place.ptr(), 0), *key = PyTuple_GET_ITEM(place.ptr(), 1);
    PyObject *value = value_at(owner, key), *container = PyTuple_GET_ITEM(place.ptr(), 2);
    if (container != Py_None && container != value) return std::nullopt;
    if (container != Py_None) sum = mixed(sum, reinterpret_cast<uint64_t>(Py_TYPE(value)));  // it may have no numbers
    if (PyTuple_GET_ITEM(place.ptr(), 3) != Py_True) continue;
    // Of an object that is made anew now and then the attributes are the same ones.
    const uint64_t name = PyCell_Check(owner) ? reinterpret_cast<uint64_t>(owner) : of_key(key);
    const bool is_list = container != Py_None && (PyList_Check(value) || PyTuple_Check(value));
    const bool is_dict = container != Py_None && PyDict_Check(value);
    const uint64_t number = is_list ? of_list(value, name) : is_dict ? of_items(value) : of_value(value);
    if (value != nullptr && is_tensor(value)) gather(owner, name, reinterpret_cast<uint64_t>(value), kFirst);
    if (container == Py_None && is_new_container(value, number)) return std::nullopt;
    sum = mixed(sum, number);
  }
  if (has_new_object_) return std::nullopt;
  for (const auto& [name, part] : gathering_) {
    Item& item = names_.try_emplace(name, Item{part.owners}).first->second;
    if (counts(item, part.owners, kFirst, kFirst)) gathered += mixed(name, part.sum);
  }
  if (std::exchange(gathered_, gathered) != gathered && !after_step_) counted_ = gathered;
  return mixed(sum, counted_);
}

// Adds what lies there to what has been gathered. Whether it counts.
bool HostState::gather(PyObject* owner, uint64_t name, uint64_t number, int64_t apart) const {
  Item& item = containers_[owner].items.try_emplace(name, Item{number}).first->second;
  Gathered& part = gathering_[name];
  part.owners = mixed(part.owners, reinterpret_cast<uint64_t>(owner));
  if (item.quick_changes >= 3 || !counts(item, number, apart, kFirst)) return false;
  part.sum = mixed(part.sum, number);
  return true;
}

// What the code names counts whatever a loop does to it.
uint64_t HostState::of_items(PyObject* dict) const {
  constexpr int64_t kFirstNumbers = 512;
  if (PyDict_GET_SIZE(dict) > kMostItems) return reinterpret_cast<uint64_t>(dict);
  const auto [found, is_new] = containers_.try_emplace(dict);
  std::unordered_map<uint64_t, Item>& known = found->second.items;
  uint64_t sum = 2;
  PyObject *key, *value;
  for (Py_ssize_t position = 0; PyDict_Next(dict, &position, &key, &value) != 0;) {
    if (is_tensor(value)) {
      gather(dict, of_key(key), reinterpret_cast<uint64_t>(value), kFirst);
      continue;
    }
    const uint64_t number = of_value(value, 0);
    const bool now_object = is_object(value, number);
    Item& item = known.try_emplace(of_key(key), Item{number, now_object && is_new}).first->second;
    const bool was_object = std::exchange(item.is_object, now_object);
    has_new_object_ = has_new_object_ || (now_object && !was_object);
    const bool is_named = PyUnicode_CheckExact(key) && PySet_Contains(keys_->ptr(), key) == 1;
    if (number != 0 && counts(item, number, is_named ? 0 : kQuick, kFirstNumbers))
      sum = mixed(sum, mixed(of_key(key), number));
  }
  return sum;
}

// Of a list or tuple. One that was empty may be there for the step to gather in.
uint64_t HostState::of_list(PyObject* list, uint64_t name) const {
  const Py_ssize_t size = PySequence_Fast_GET_SIZE(list);
  const auto [found, is_new] = containers_.try_emplace(list, Container{.was_empty = size == 0});
  Container& known = found->second;
  const bool is_long = size > kMostItems;
  uint64_t held = is_long ? 1 : 0, objects = 0;
  for (Py_ssize_t i = 0; i < size && !is_long; ++i) {
    PyObject* const value = PySequence_Fast_GET_ITEM(list, i);
    if (is_tensor(value) || known.was_empty)
      held = mixed(held, is_tensor(value) ? reinterpret_cast<uint64_t>(value) : of_value(value));
    objects += PyCallable_Check(value) != 0 || is_object(value, of_value(value, 0)) ? 1 : 0;
  }
  const bool moved = std::exchange(known.objects, objects) != objects && !is_new && !after_step_;
  if (gather(list, mixed(name, 1), mixed(held, objects), kQuick) && moved) has_new_object_ = true;
  if (known.was_empty) return 0;
  return is_long ? reinterpret_cast<uint64_t>(list) : of_value(list);
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
