#include "python/binding/code_place.h"
#include <filesystem>
#include <string>
#include <utility>
#include <vector>
#include "base/detail/caller_words.h"
#include "core/detail/user_place.h"

namespace duet::python {

namespace {

// The frame that called into duet: what lies above it is the step's code.
thread_local const PyFrameObject* caller = nullptr;

bool is_user_code(const std::string& file) {
  static const auto* const libraries = [] {
    auto* folders = new std::vector<std::string>();
    for (const char* library : {"torch", "duet"}) {
      const auto path = py::cast<std::string>(py::module_::import(library).attr("__file__"));
      folders->push_back(std::filesystem::path(path).parent_path().string() + "/");
    }
    return folders;
  }();
  if (file.starts_with("<frozen")) return false;
  for (const std::string& folder : *libraries) {
    if (file.starts_with(folder)) return false;
  }
  return true;
}

std::string innermost_line() {
  if (caller == nullptr) return {};
  const py::gil_scoped_acquire gil;
  auto frame = py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(PyEval_GetFrame()));
  while (frame && frame.ptr() != reinterpret_cast<const PyObject*>(caller)) {
    auto* const at = reinterpret_cast<PyFrameObject*>(frame.ptr());
    const auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(at)));
    const auto file = py::cast<std::string>(code.attr("co_filename"));
    if (is_user_code(file)) {
      return std::filesystem::path(file).filename().string() + ":" + std::to_string(PyFrame_GetLineNumber(at)) +
             " in " + py::cast<std::string>(code.attr("co_name"));
    }
    frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(at)));
  }
  return {};
}

}  // namespace

UserCode::UserCode() : outer_(std::exchange(caller, PyEval_GetFrame())) {}

UserCode::~UserCode() { caller = outer_; }

void tell_in_python() {
  set_user_place(&innermost_line);
  set_caller_words({{"Task::graph_key", "graph_key"},
                    {"[Task] training_step", "[Task] the loss function"},
                    {"training_step", "the loss function"},
                    {"graph.fallback", "fallback"},
                    {"graph.cache_bytes", "cache_bytes"},
                    {"graph.check", "check"}});
}

}  // namespace duet::python
