#include "python/binding/torch_state.h"
#include <unordered_map>
#include <unordered_set>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet::python {

void read_state(const py::object& state, GivenState& given) {
  for (std::size_t s = 0; s < given.names.size(); ++s) {
    const std::string& name = given.names[s];
    if (name.empty() || !state.contains(name.c_str())) continue;
    const py::object value = state[name.c_str()];
    if (value.is_none()) continue;
    const at::Tensor& own = given.own[s];
    at::Tensor& tensor = given.tensors[s];
    if (THPVariable_Check(value.ptr())) tensor = py::cast<at::Tensor>(value);
    const bool is_like = tensor.defined() && tensor.sizes() == own.sizes() && tensor.scalar_type() == own.scalar_type();
    if (is_like || (name == "step" && tensor.defined() && tensor.numel() == 1)) continue;
    throw ConfigError(c10::str(
        "[graph_step] optimizer.state has '", name, "' of '", given.parameter, "' as ",
        tensor.defined() ? c10::str(tensor.scalar_type(), tensor.sizes()) : std::string(Py_TYPE(value.ptr())->tp_name),
        ", expected ", own.scalar_type(), own.sizes()));
  }
}

void make_independent(std::vector<GivenState>& given) {
  std::unordered_set<const void*> written;  // memory
  for (const GivenState& state : given) {
    for (const at::Tensor& own : state.own) written.insert(own.storage().unsafeGetStorageImpl());
  }
  std::unordered_map<const void*, std::string> users;  // of tensors
  for (GivenState& state : given) {
    for (std::size_t s = 0; s < state.tensors.size(); ++s) {
      at::Tensor& tensor = state.tensors[s];
      if (!tensor.defined()) continue;
      const auto [user, is_first] = users.emplace(tensor.unsafeGetTensorImpl(), state.parameter);
      require<ConfigError>(is_first,
                           c10::str("[graph_step] optimizer.state of '", user->second, "' and '", state.parameter,
                                    "' has one tensor for both, '", state.names[s], "'; give each its own"));
      const bool is_written = written.contains(tensor.storage().unsafeGetStorageImpl());
      if (is_written && !tensor.is_same(state.own[s])) tensor = tensor.clone();
    }
  }
}

}  // namespace duet::python
