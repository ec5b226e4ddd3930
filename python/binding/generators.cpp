#include "python/binding/generators.h"
#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <string_view>
#include <utility>
#include <c10/util/hash.h>

namespace duet::python {

namespace {

py::object function(const char* name) { return py::module_::import("duet.generators").attr(name); }

// A Mersenne Twister's numbers and its place among them. To ask for a state copies each of them.
using Twister = std::array<uint32_t, 625>;

uint64_t hash_at(const char* twister) { return std::hash<std::string_view>()({twister, sizeof(Twister)}); }

bool has_twister_at(const py::object& random, const char* place) {
  if (Py_TYPE(random.ptr())->tp_basicsize < static_cast<Py_ssize_t>(sizeof(PyObject) + sizeof(Twister))) return false;
  Twister found;
  std::memcpy(found.data(), place, sizeof(found));
  const auto state = py::cast<Twister>(random.attr("getstate")().attr("__getitem__")(1));
  return found.front() == state.back() && std::equal(found.begin() + 1, found.end(), state.begin());
}

uint64_t place_of(const py::object& python) {
  const char* const place = reinterpret_cast<const char*>(python.ptr()) + sizeof(PyObject);
  static const bool is_there = has_twister_at(python, place);  // in CPython
  if (!is_there) return static_cast<uint64_t>(py::hash(python.attr("getstate")()));
  return c10::hash_combine(hash_at(place), static_cast<uint64_t>(py::hash(python.attr("gauss_next"))));
}

uint64_t place_of_numpy(const py::object& numpy) {
  static const auto* twister = new py::object(py::module_::import("numpy.random").attr("MT19937"));
  const py::object bits = numpy.attr("_bit_generator");
  if (!py::type::of(bits).is(*twister)) return static_cast<uint64_t>(py::hash(py::repr(bits.attr("state"))));
  static PyObject* known = nullptr;
  static const char* place = nullptr;  // within the object
  if (bits.ptr() != std::exchange(known, bits.ptr()))
    place = reinterpret_cast<const char*>(py::cast<std::intptr_t>(bits.attr("ctypes").attr("state_address")));
  return hash_at(place);
}

}  // namespace

at::Tensor host_random_state() {
  const py::gil_scoped_acquire gil;
  return random_state_of(function("HOST"));
}

void set_host_random_state(const at::Tensor& state) {
  const py::gil_scoped_acquire gil;
  set_random_state_of(function("HOST"), state);
}

uint64_t host_random_place() {
  static const auto* host = new py::tuple(function("HOST"));
  return c10::hash_combine(place_of((*host)[0]), place_of_numpy((*host)[1]));
}

py::object generators_of(const py::object& loader) { return function("own")(loader); }

at::Tensor random_state_of(const py::object& generators) {
  return py::cast<at::Tensor>(function("states")(generators));
}

void set_random_state_of(const py::object& generators, const at::Tensor& state) {
  function("restore")(generators, state);
}

}  // namespace duet::python
