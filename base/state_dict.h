#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <ATen/core/Tensor.h>

namespace duet {

using StateValue = std::variant<bool, int64_t, double, std::string>;

// What a part of a run must keep to continue bit-exactly: tensors and single values, by dotted names.
// Reading a name that is missing or of another type throws CheckpointError naming it.
class StateDict {
 public:
  void set(const std::string& name, at::Tensor tensor);
  void set(const std::string& name, StateValue value);

  bool empty() const { return tensors_.empty() && values_.empty(); }
  bool has(const std::string& name) const;
  const at::Tensor& tensor(const std::string& name) const&;
  at::Tensor tensor(const std::string& name) && { return std::as_const(*this).tensor(name); }
  bool flag(const std::string& name) const;
  int64_t integer(const std::string& name) const;
  double number(const std::string& name) const;
  const std::string& text(const std::string& name) const&;
  std::string text(const std::string& name) && { return std::as_const(*this).text(name); }

  // Adds everything of `part` under `prefix` + "."
  void put(const std::string& prefix, const StateDict& part);
  // What lies under `prefix` + ".", without that prefix.
  StateDict part(const std::string& prefix) const;
  // Everything but that.
  StateDict without(const std::string& prefix) const;

  const std::map<std::string, at::Tensor>& tensors() const& { return tensors_; }
  std::map<std::string, at::Tensor> tensors() && { return std::move(tensors_); }
  const std::map<std::string, StateValue>& values() const& { return values_; }
  std::map<std::string, StateValue> values() && { return std::move(values_); }

 private:
  std::map<std::string, at::Tensor> tensors_;
  std::map<std::string, StateValue> values_;
};

// With tensors of their own, on `device` if it is given.
StateDict copy_of(const StateDict& state, std::optional<at::Device> device = std::nullopt);

// A part of a run that a checkpoint holds. state_dict() may lend live tensors: whoever keeps them clones them.
// load_state_dict checks before it changes anything, and takes whatever state_dict() gave.
class Stateful {
 public:
  virtual ~Stateful() = default;
  virtual StateDict state_dict() const { return {}; }
  virtual void load_state_dict(const StateDict& /*state*/) {}
};

// Throws CheckpointError that names `name` if shape or dtype differ.
void check_state(const std::string& name, const at::Tensor& source, const at::Tensor& target);
// Checks, then copies `source` into `target` in place.
void copy_state(const std::string& name, const at::Tensor& source, const at::Tensor& target);

}  // namespace duet
