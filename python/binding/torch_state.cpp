#include "python/binding/torch_state.h"
#include <unordered_map>
#include <unordered_set>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet::python {

namespace {

[[noreturn]] void refuse(const GivenState& given, const std::string& what) {
  throw ConfigError("[graph_step] optimizer.state of '" + given.parameter + "' " + what);
}

void check_like(const GivenState& given, std::size_t slot, const py::object& value) {
  const at::Tensor &tensor = given.tensors[slot], &own = given.own[slot];
  const auto is_like = [&] {
    return tensor.layout() == at::kStrided && tensor.device() == own.device() && tensor.sizes() == own.sizes() &&
           tensor.scalar_type() == own.scalar_type();
  };
  const bool is_count = given.names[slot] == "step";
  if (tensor.defined() && (is_count ? tensor.numel() == 1 && !tensor.is_meta() : is_like())) return;
  refuse(given, c10::str("has '", given.names[slot], "' as ",
                         tensor.defined() ? c10::str(tensor.device(), " ", tensor.scalar_type(), tensor.sizes())
                                          : std::string(Py_TYPE(value.ptr())->tp_name),
                         ", expected ", own.device(), " ", own.scalar_type(), own.sizes()));
}

}  // namespace

void read_state(const py::object& state, GivenState& given) {
  std::string missing, found;
  for (std::size_t s = 0; s < given.names.size(); ++s) {
    const std::string& name = given.names[s];
    if (name.empty()) continue;
    const py::object value = state.contains(name.c_str()) ? py::object(state[name.c_str()]) : py::none();
    (value.is_none() ? missing : found) = name;
    if (value.is_none()) continue;
    if (THPVariable_Check(value.ptr())) given.tensors[s] = py::cast<at::Tensor>(value);
    check_like(given, s, value);
    if (given.tensors[s].dim() != given.own[s].dim()) given.tensors[s] = given.tensors[s].reshape(given.own[s].sizes());
  }
  if (!found.empty() && !missing.empty()) refuse(given, "has '" + found + "', but no '" + missing + "'");
}

void make_independent(std::vector<GivenState>& given) {
  std::unordered_set<const void*> written;  // memory
  for (const GivenState& state : given) {
    for (const at::Tensor& own : state.own) written.insert(own.storage().unsafeGetStorageImpl());
  }
  std::unordered_map<const void*, std::string> users;  // of memory
  for (GivenState& state : given) {
    for (std::size_t s = 0; s < state.tensors.size(); ++s) {
      at::Tensor& tensor = state.tensors[s];
      if (!tensor.defined() || tensor.numel() == 0) continue;
      const std::string text = "'" + state.names[s] + "' of '" + state.parameter + "'";
      const auto [user, is_first] = users.emplace(tensor.const_data_ptr(), text);
      if (!is_first) refuse(state, "has the memory of " + user->second + " as " + text + "; give each its own");
      const bool is_written = written.contains(tensor.storage().unsafeGetStorageImpl());
      if (is_written && !tensor.is_same(state.own[s])) tensor = tensor.clone();
    }
  }
}

}  // namespace duet::python
