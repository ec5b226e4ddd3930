#include <string>
#include <torch/csrc/Exceptions.h>
#include "base/error.h"
#include "python/binding/bind.h"

namespace duet::python {

namespace {

// By kind; they live as long as the interpreter.
PyObject *base_error, *config_error, *step_error, *data_error, *checkpoint_error, *save_refused, *peer_error,
    *graph_error, *non_finite_error;

PyObject* make(py::module_& module, const char* name, const py::tuple& bases, const char* meaning) {
  PyObject* type = PyErr_NewExceptionWithDoc(("duet." + std::string(name)).c_str(), meaning, bases.ptr(), nullptr);
  module.attr(name) = py::reinterpret_borrow<py::object>(type);
  return type;
}

PyObject* type_of(const Error& error) {
  if (dynamic_cast<const SaveRefused*>(&error) != nullptr) return save_refused;
  if (dynamic_cast<const CheckpointError*>(&error) != nullptr) return checkpoint_error;
  if (dynamic_cast<const StepError*>(&error) != nullptr) return step_error;
  if (dynamic_cast<const ConfigError*>(&error) != nullptr) return config_error;
  if (dynamic_cast<const DataError*>(&error) != nullptr) return data_error;
  if (dynamic_cast<const PeerError*>(&error) != nullptr) return peer_error;
  if (dynamic_cast<const GraphError*>(&error) != nullptr) return graph_error;
  if (dynamic_cast<const NonFiniteError*>(&error) != nullptr) return non_finite_error;
  return base_error;
}

// With the error of Python that it stands for, and its traceback.
void raise(const Error& error) {
  try {
    std::rethrow_if_nested(error);
    PyErr_SetString(type_of(error), error.what());
  } catch (py::error_already_set& cause) {
    py::raise_from(cause, type_of(error), error.what());
  }
}

void translate(std::exception_ptr thrown) {
  try {
    if (thrown) std::rethrow_exception(thrown);
  } catch (const Error& error) {
    raise(error);
  } catch (const c10::Error&) {
    torch::translate_exception_to_python(std::current_exception());
  } catch (python_error& error) {  // of Python code that autograd has called
    error.restore();
  }
}

}  // namespace

void bind_errors(py::module_& module) {
  const auto borrowed = [](PyObject* type) { return py::reinterpret_borrow<py::object>(type); };
  base_error =
      make(module, "Error", py::make_tuple(borrowed(PyExc_Exception)), "Every error that duet throws on purpose.");
  const py::object base = borrowed(base_error);
  const py::tuple value = py::make_tuple(base, borrowed(PyExc_ValueError));
  const py::tuple runtime = py::make_tuple(base, borrowed(PyExc_RuntimeError));
  config_error = make(module, "ConfigError", value, "An option or a call that cannot work: change the set-up.");
  step_error = make(module, "StepError", py::make_tuple(borrowed(config_error), borrowed(PyExc_RuntimeError)),
                    "The model or its loss failed on a batch: shapes, dtypes or values that do not fit each other.");
  data_error = make(module, "DataError", value, "A file or a batch that cannot be used: change the data.");
  checkpoint_error = make(module, "CheckpointError", runtime,
                          "A checkpoint that cannot be written, is damaged, or belongs to another model.");
  save_refused = make(module, "SaveRefused", py::make_tuple(borrowed(checkpoint_error)),
                      "A hook found that the state is not worth saving.");
  peer_error =
      make(module, "PeerError", runtime, "Another process of the group is lost, has failed, or does not answer.");
  graph_error = make(module, "GraphError", runtime,
                     "A step that cannot be captured, or whose replay stopped being the same as its eager run.");
  non_finite_error = make(module, "NonFiniteError", py::make_tuple(base, borrowed(PyExc_ArithmeticError)),
                          "The loss or a gradient became infinite or NaN, and the run was told to end then.");
  py::register_exception_translator(translate);
}

}  // namespace duet::python
