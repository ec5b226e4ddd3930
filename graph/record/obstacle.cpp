#include "graph/record/obstacle.h"
#include <algorithm>
#include <ATen/core/enum_tag.h>
#include <ATen/core/jit_type.h>
#include "base/detail/op_rules.h"

namespace duet {

namespace {

bool is_boolean_mask(const c10::IValue& index) {
  if (!index.isTensor() || !index.toTensor().defined()) return false;
  const at::ScalarType type = index.toTensor().scalar_type();
  return type == at::kBool || type == at::kByte;
}

// index with integer tensors has a fixed output shape, although its tag says otherwise.
bool indexes_by_integers(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::index") return false;
  for (const c10::IValue& argument : stack) {
    if (!argument.isList()) continue;
    for (const c10::IValue& index : argument.toListRef()) {
      if (is_boolean_mask(index)) return false;
    }
  }
  return true;
}

// Then aten::equal gives the same at every step: nothing but shapes or one and the same memory decides. (A NaN makes a
// tensor differ from itself; what depends on it is NaN as well.)
bool equal_by_layout(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::equal") return false;
  const at::Tensor& a = stack[stack.size() - 2].toTensor();
  const at::Tensor& b = stack.back().toTensor();
  if (a.sizes() != b.sizes()) return true;
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

// LibTorch's own ops that give numbers give those of shapes and settings, or have a tag that says otherwise.
bool gives_a_number(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name.rfind("aten::", 0) == 0 || name.rfind("duet::", 0) == 0) return false;
  return std::any_of(op.schema().returns().begin(), op.schema().returns().end(), [](const c10::Argument& result) {
    const c10::TypePtr& type = result.type();
    return type->isSubtypeOf(*c10::NumberType::get()) || type->kind() == c10::TypeKind::BoolType ||
           type->kind() == c10::TypeKind::StringType;
  });
}

}  // namespace

bool is_host_read(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name == "aten::_local_scalar_dense" || name == "aten::equal";
}

Obstacle host_read_obstacle(const std::string& name) {
  return {name + " reads a value back to the host",
          "keep it a tensor (item(), bool(tensor), printing, torch.distributions without validate_args=False, and the "
          "backward passes of prod and cumprod are what cause this)"};
}

at::Tensor laid_over_memory(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::size_t arguments = op.schema().arguments().size();
  if (op.schema().name() != "aten::set_" || arguments < 2) return {};
  const at::Tensor& tensor = stack[stack.size() - arguments].toTensor();
  return tensor.numel() == 0 ? tensor : at::Tensor();
}

namespace {

bool lists_lists_of_tensors(const c10::IValue& argument) {
  if (!argument.isList()) return false;
  return std::ranges::any_of(argument.toListRef(),
                             [](const c10::IValue& item) { return item.isTensorList() && !item.toListRef().empty(); });
}

}  // namespace

std::optional<Obstacle> find_obstacle(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string name = full_name(op);
  if (equal_by_layout(op, stack)) return std::nullopt;
  if (name.starts_with("c10d::") || name.starts_with("_c10d_functional")) {
    return Obstacle{name + " exchanges data with other processes",
                    "leave it out of the loss, such as in a hook, or let the step run op by op"};
  }
  if (std::any_of(stack.end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size()), stack.end(),
                  lists_lists_of_tensors)) {
    return Obstacle{name + " takes lists of lists of tensors", "let it take one list"};
  }
  if (name == "aten::_pack_padded_sequence" || name == "aten::_pad_packed_sequence") {
    return Obstacle{name + " gives shapes that follow from the lengths' values", "pad to a fixed length and mask"};
  }
  const bool gives_values = op.hasTag(at::Tag::data_dependent_output) && op.schema().name() != "aten::_assert_async";
  if (is_host_read(op) || gives_values) return host_read_obstacle(name);
  if (gives_a_number(op)) {
    return Obstacle{name + " gives a number, which a replay would freeze", "let the op give a 0-dim tensor"};
  }
  const bool of_lengths = name == "aten::_ctc_loss";  // numbers of the host, although its tag says otherwise
  const bool follows_values =
      (op.hasTag(at::Tag::dynamic_output_shape) && !of_lengths) || name == "aten::_unique";  // which has no tag
  if (follows_values && !indexes_by_integers(op, stack)) {
    return Obstacle{name + " has an output whose shape depends on values",
                    "use a form of fixed shape (a mask and where() instead of nonzero or boolean indexing)"};
  }
  return std::nullopt;
}

}  // namespace duet
