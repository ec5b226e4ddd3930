#pragma once

#include <memory>
#include <string>
#include <vector>
#include "core/trainer_options.h"
#include "graph/graph_options.h"
#include "python/binding/py.h"
#include "python/binding/task.h"

namespace duet::python {

// The keyword arguments of a trainer in Python, sorted.
struct TrainerArguments {
  TrainerOptions options{};
  GraphOptions graph{};
  PythonTask::Functions functions{};
  std::vector<py::object> hooks{}, metrics{};
  bool default_hooks = true;
  std::string caller{};
};
// All that there are.
std::vector<std::string> trainer_arguments();
// Throws ConfigError for a name that is not among those that `caller` takes, with the near ones, and for values that
// cannot be.
TrainerArguments read_arguments(const py::kwargs& arguments, const std::string& caller = "Trainer",
                                const std::vector<std::string>& taken = trainer_arguments());

}  // namespace duet::python
