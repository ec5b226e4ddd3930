#pragma once

#include <functional>
#include "python/binding/py.h"

namespace duet::python {

// Called with each Python object that something of C++ keeps, once for each reference.
using VisitKept = std::function<void(const SharedObject&)>;

// For a class that keeps Python objects which may refer back to it (a model that has its step as an attribute, a loss
// that is a method of the class around both): Python's collector then finds such rings. T has visit_kept(VisitKept),
// and let_go(), which drops all of them.
template <class T>
py::custom_type_setup collected() {
  return py::custom_type_setup([](PyHeapTypeObject* heap_type) {
    PyTypeObject& type = heap_type->ht_type;
    type.tp_flags |= Py_TPFLAGS_HAVE_GC;
    type.tp_traverse = [](PyObject* self, visitproc visit, void* arg) -> int {
      Py_VISIT(Py_TYPE(self));
      if (!py::detail::is_holder_constructed(self)) return 0;
      int result = 0;
      py::cast<T&>(py::handle(self)).visit_kept([&](const SharedObject& kept) {
        if (kept && result == 0) result = visit(kept->ptr(), arg);
      });
      return result;
    };
    type.tp_clear = [](PyObject* self) -> int {
      if (py::detail::is_holder_constructed(self)) py::cast<T&>(py::handle(self)).let_go();
      return 0;
    };
  });
}

}  // namespace duet::python
