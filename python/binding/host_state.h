#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <unordered_map>
#include "python/binding/py.h"

namespace duet::python {

// What decides about a step, or is moved by it, without any op. Each function gives another number if it moved, and is
// called under the GIL.
class HostState {
 public:
  // `functions`: a list of those that a step calls.
  HostState(SharedObject model, SharedObject functions) : model_(std::move(model)), functions_(std::move(functions)) {}
  // One more function that a step calls.
  void add(const py::object& function);
  // It calls none of these any more.
  void remove(const py::list& functions);
  // The plain numbers and texts that modules have as attributes, and that the code of the step finds in closures,
  // globals and objects in them: a temperature, a counter. And what is called: the modules of the model, their classes,
  // functions that they have as attributes, and hooks, those of parameters among them.
  // `after_step`: the code of the step has run since the last call; tensors and objects that it has kept do not count.
  uint64_t numbers(bool after_step = false) const;
  void visit_kept(const std::function<void(const SharedObject&)>& visit) const {
    for (const SharedObject& kept : {functions_, own_code_, modules_, places_, generators_, keys_}) {
      if (kept) visit(kept);
    }
  }
  // The function modes around the step (torch.overrides): the default device, and others.
  static uint64_t function_modes();
  // Whether there are others, which want to see every call.
  static bool has_function_modes();
  // Whether numbers() is of all that it shall be of: the code may refer to too much.
  bool sees_all() const { return sees_all_; }
  // Where the random numbers of Python and NumPy stand, those of generators among what numbers() looks at too.
  uint64_t random_numbers() const;

 private:
  static constexpr int64_t kFirst = 2048;  // calls of numbers(), two or three for each of the first, checked replays

  struct Item {
    uint64_t number = 0;
    bool is_object = false;
    int64_t changed = 0;  // in which call
    int quick_changes = 0;
  };
  struct Container {
    bool was_empty = false;
    uint64_t objects = 0;  // in a list
    std::unordered_map<uint64_t, Item> items;
  };

  void look_around() const;
  bool counts(Item& item, uint64_t number, int64_t apart, int64_t first) const;
  bool gather(PyObject* owner, uint64_t name, uint64_t number, int64_t apart) const;
  uint64_t of_items(PyObject* dict) const;
  uint64_t of_list(PyObject* list, uint64_t name) const;
  bool has_new_code() const;
  std::optional<uint64_t> referenced() const;

  SharedObject model_, functions_;
  mutable SharedObject own_code_, modules_, places_, generators_, keys_;  // duet.host_numbers.watched
  mutable std::size_t modules_of_model_ = 0;                              // the first of modules_
  mutable bool sees_all_ = true, has_new_object_ = false, after_step_ = false;
  mutable std::unordered_map<PyObject*, Container> containers_;
  struct Gathered {
    uint64_t sum = 0, owners = 0;
  };
  mutable std::unordered_map<uint64_t, Gathered> gathering_;  // tensors, and what is in lists that were empty, by name
  mutable std::unordered_map<uint64_t, Item> names_;          // which owners these have
  mutable uint64_t gathered_ = 0, counted_ = 0;               // all of it now, and what numbers() goes by
  mutable int64_t calls_ = 0, looked_ = 0, quick_looks_ = 0;  // of numbers()
  mutable uint64_t latest_ = 0;                               // numbers()
};

}  // namespace duet::python
