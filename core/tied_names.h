#pragma once

#include <map>
#include <string>
#include "../base/batch.h"

namespace duet {

// Tied weights are one tensor with several names, and a module lists it under each of them. A task gives it once, under
// the first, as named_parameters(remove_duplicate=True) does in Python.

// The items without those whose tensor has come before under another name.
NamedTensors each_once(NamedTensors items);

// Every name that each_once() leaves out, and the one under which it gives that tensor.
std::map<std::string, std::string> further_names(const NamedTensors& items);

class Task;

// What a task with tied weights also derives from, so that files that know a tensor by any of its names fit.
class TiedNames {
 public:
  virtual ~TiedNames() = default;

  // Of parameters and buffers: every further name, and the one in named_parameters() or named_buffers().
  virtual std::map<std::string, std::string> tied_names() const = 0;
};

// Those of `task`; none if it is no TiedNames.
std::map<std::string, std::string> tied_names_of(const Task& task);

}  // namespace duet
