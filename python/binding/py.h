#pragma once

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/pybind.h>
#include "base/error.h"

// What every file of the binding needs of Python.
namespace duet::python {

// A Python object that C++ keeps: whoever lets go of it last may not hold the GIL.
using SharedObject = std::shared_ptr<py::object>;

inline SharedObject share(py::object object) {
  return {new py::object(std::move(object)), [](py::object* kept) {
            if (!Py_IsInitialized()) return;  // the interpreter has ended, and its objects with it
            const py::gil_scoped_acquire gil;
            delete kept;
          }};
}

inline std::string type_name(const py::handle& object) {
  return py::cast<std::string>(py::str(py::type::handle_of(object).attr("__name__")));
}

inline std::string shown(const py::handle& object) { return py::cast<std::string>(py::repr(object)); }

// `kind`: what the object is to be, for the error.
inline void refuse_class(const py::handle& object, const std::string& kind) {
  if (PyType_Check(object.ptr()) == 0) return;
  const auto name = py::cast<std::string>(object.attr("__name__"));
  throw ConfigError("[" + kind + "] found the class " + name + ", expected an object of it; pass " + name + "()");
}

// The attribute, or nothing where it is missing or None.
inline py::object optional_attribute(const py::handle& object, const char* name) {
  const py::object found = py::getattr(object, name, py::none());
  return found.is_none() ? py::object() : found;
}

// One call at a time: other threads may come while the GIL is free. `user` is the thread that runs, if any does.
class Busy {
 public:
  explicit Busy(std::thread::id& user, bool may_be_in_hook = false)
      : user_(user), is_outermost_(user == std::thread::id()) {
    require<ConfigError>(is_outermost_ || (may_be_in_hook && user == std::this_thread::get_id()),
                         "[duet] this trainer or step runs already, in another thread or in a hook of its own; "
                         "let it end first");
    user = std::this_thread::get_id();
  }
  ~Busy() {
    if (is_outermost_) user_ = std::thread::id();
  }
  Busy(const Busy&) = delete;
  Busy& operator=(const Busy&) = delete;

 private:
  std::thread::id& user_;
  bool is_outermost_;
};

}  // namespace duet::python
