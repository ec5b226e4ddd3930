#include "base/detail/op_rules.h"
#include <algorithm>
#include <cstring>
#include <ATen/core/Tensor.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include "base/detail/torch_versions.h"

namespace duet {

std::string full_name(const c10::OperatorHandle& op) { return c10::toString(op.operator_name()); }

// The tag is missing on some (cauchy_, geometric_, ...).
bool is_random(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
         std::any_of(arguments.begin(), arguments.end(),
                     [](const c10::Argument& a) { return a.name() == "generator"; });
}

// Attention with no dropout draws nothing.
bool draws(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& value = stack[stack.size() - arguments.size() + i];
    if (arguments[i].name() == "dropout_p" && value.isDouble() && value.toDouble() == 0) return false;
  }
  return is_random(op);
}

bool overwrites(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_") return true;
  if (!op.schema().arguments().empty() && op.schema().arguments().back().is_out()) return true;
  return is_random(op) && name.back() == '_' && name.find("rrelu") == std::string::npos;
}

bool is_empty_like(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0;
}

bool is_workspace(const c10::OperatorHandle& op, std::size_t result) {
  const std::string& name = op.schema().name();
  const bool makes_one =
      name == "aten::mkldnn_rnn_layer" || name == "aten::_cudnn_rnn" || name == "aten::cudnn_batch_norm";
  return makes_one && result == 3;
}

const char* special_kind(const at::Tensor& tensor) {
  if (tensor.layout() != at::kStrided) return "a sparse tensor";
  if (tensor.is_nested()) return "a nested tensor";
  if (tensor.is_quantized()) return "a quantized tensor";
  if (tensor.is_meta())
    return "a tensor without memory (device meta: torch.cond, scan and torch.compile trace with such)";
  if (has_names(tensor)) return "a tensor with named dimensions";
  if (tensor._is_zerotensor()) return "a tensor of zeros without memory (as the gradient of sgn, or of forward mode)";
  return tensor.has_storage() ? nullptr : "a tensor without memory";
}

bool is_plain(const at::Tensor& tensor) {
  return special_kind(tensor) == nullptr && !tensor.is_conj() && !tensor.is_neg();
}

void fill_empty(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage() || !tensor.is_cpu() || tensor.storage().nbytes() == 0) return;
  std::memset(tensor.storage().mutable_data(), 0xCB, tensor.storage().nbytes());
}

bool writes(const c10::Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

std::vector<std::size_t> hidden_writes(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "aten::_cudnn_rnn") return {op.schema().arguments().size() - 1};  // the state of its dropout
  const bool norm =
      name == "aten::native_batch_norm" || name == "aten::cudnn_batch_norm" || name == "aten::miopen_batch_norm";
  return norm ? std::vector<std::size_t>{3, 4} : std::vector<std::size_t>{};  // running mean and variance
}

}  // namespace duet
