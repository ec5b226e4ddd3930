#include "base/state_dict.h"
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

void StateDict::set(const std::string& name, at::Tensor tensor) { tensors_[name] = std::move(tensor); }

void StateDict::set(const std::string& name, StateValue value) { values_[name] = std::move(value); }

bool StateDict::has(const std::string& name) const { return tensors_.count(name) != 0 || values_.count(name) != 0; }

const at::Tensor& StateDict::tensor(const std::string& name) const& {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw CheckpointError("[StateDict] tensor '" + name + "' is missing; the checkpoint belongs to another set-up");
  }
  return found->second;
}

namespace {

template <class T>
const T& typed(const std::map<std::string, StateValue>& values, const std::string& name, const char* expected) {
  const auto found = values.find(name);
  const T* const value = found == values.end() ? nullptr : std::get_if<T>(&found->second);
  if (value != nullptr) return *value;
  throw CheckpointError(c10::str("[StateDict] '", name, "' is ", found == values.end() ? "missing" : "something else",
                                 ", expected ", expected, "; the checkpoint belongs to another set-up"));
}

}  // namespace

bool StateDict::flag(const std::string& name) const { return typed<bool>(values_, name, "a flag"); }

int64_t StateDict::integer(const std::string& name) const { return typed<int64_t>(values_, name, "an integer"); }

double StateDict::number(const std::string& name) const {
  const auto found = values_.find(name);
  const bool is_integer = found != values_.end() && std::holds_alternative<int64_t>(found->second);
  return is_integer ? static_cast<double>(integer(name)) : typed<double>(values_, name, "a number");
}

const std::string& StateDict::text(const std::string& name) const& {
  return typed<std::string>(values_, name, "a text");
}

void StateDict::put(const std::string& prefix, const StateDict& part) {
  for (const auto& [name, tensor] : part.tensors_) tensors_[prefix + "." + name] = tensor;
  for (const auto& [name, value] : part.values_) values_[prefix + "." + name] = value;
}

namespace {

template <class Map>
Map under(const Map& map, const std::string& prefix) {
  Map part;
  for (auto it = map.lower_bound(prefix); it != map.end() && it->first.compare(0, prefix.size(), prefix) == 0; ++it) {
    part.emplace(it->first.substr(prefix.size()), it->second);
  }
  return part;
}

}  // namespace

StateDict StateDict::part(const std::string& prefix) const {
  StateDict result;
  result.tensors_ = under(tensors_, prefix + ".");
  result.values_ = under(values_, prefix + ".");
  return result;
}

StateDict StateDict::without(const std::string& prefix) const {
  StateDict result = *this;
  const auto erase = [&](auto& items) {
    std::erase_if(items, [&](const auto& entry) { return entry.first.starts_with(prefix + "."); });
  };
  erase(result.tensors_);
  erase(result.values_);
  return result;
}

StateDict copy_of(const StateDict& state, std::optional<at::Device> device) {
  StateDict copy = state;
  for (const auto& [name, tensor] : state.tensors()) {
    const at::Device to = device.value_or(tensor.device());
    copy.set(name, tensor.detach().to(to, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true));
  }
  return copy;
}

void check_state(const std::string& name, const at::Tensor& source, const at::Tensor& target) {
  if (source.sizes() != target.sizes() || source.scalar_type() != target.scalar_type()) {
    throw CheckpointError(c10::str("[Checkpoint] '", name, "' is ", source.scalar_type(), source.sizes(),
                                   " in the checkpoint but ", target.scalar_type(), target.sizes(),
                                   " here; load it into the model it was saved from"));
  }
}

void copy_state(const std::string& name, const at::Tensor& source, const at::Tensor& target) {
  check_state(name, source, target);
  const at::NoGradGuard no_grad;
  target.copy_(source);
}

}  // namespace duet
