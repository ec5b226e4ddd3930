#pragma once

#include <cstdint>
#include "python/binding/py.h"

// What objects of Python come to as numbers: others where what decides about a step is another. All under the GIL.

namespace duet::python {

inline uint64_t mixed(uint64_t sum, uint64_t part) { return (sum ^ part) * 0x9E3779B97F4A7C15ULL + (sum >> 29); }

constexpr Py_ssize_t kMostItems = 64;  // of a list, tuple or dict, as in duet.host_numbers

// One of the user's own type may run code of its own when it is asked.
uint64_t of_key(PyObject* key);

// Of a number, text, constant or function, or of those in a list or tuple so many levels deep; 0 for what else there
// is: a cache of tensors may grow.
uint64_t of_value(PyObject* value, int deepest = 4);

// By its type alone: an object may say of itself what it likes.
bool is_tensor(PyObject* object);

// Of a module's attributes. `of_model`: its training flag is no number, evaluations change it.
uint64_t of_module(const py::handle& module, bool of_model);

// Of the hooks that torch calls for every module.
uint64_t of_global_hooks();

// What the search of duet.host_numbers would look into, where it has found nothing of the kind. `number`: of_value().
bool is_object(PyObject* value, uint64_t number);

}  // namespace duet::python
