#include "core/exported/interpreter.h"
#include <algorithm>
#include <utility>
#include <ATen/autocast_mode.h>
#include <torch/nn/module.h>
#include "core/detail/user_place.h"
#include "core/exported/ops.h"

namespace duet::exported {

namespace {

void store(const Result& result, const c10::IValue& value, std::vector<c10::IValue>& values) {
  if (!result.is_list) {
    if (result.slots.front()) values[*result.slots.front()] = value;
    return;
  }
  TORCH_CHECK(value.isList(), "the op gave ", value.tagKind(), ", expected a list of tensors");
  const auto items = value.toListRef();
  TORCH_CHECK(items.size() == result.slots.size(), "the op gave ", items.size(), " tensors, expected ",
              result.slots.size());
  for (std::size_t i = 0; i < items.size(); ++i) {
    if (result.slots[i]) values[*result.slots[i]] = items[i];
  }
}

}  // namespace

c10::IValue Interpreter::value_of(const Argument& argument, const Values& values) const {
  if (const auto* constant = std::get_if<c10::IValue>(&argument.value)) return *constant;
  if (const auto* slot = std::get_if<Slot>(&argument.value)) {
    const c10::IValue& value = values[slot->index];
    if (slot->as == Slot::As::kTensor && value.isScalar()) return wrapped_number(value);
    if (slot->as == Slot::As::kFloat && value.isInt()) return static_cast<double>(value.toInt());
    return value;
  }
  if (std::holds_alternative<at::Device>(argument.value)) return device_;
  const auto* list = std::get_if<List>(&argument.value);
  if (list == nullptr) return {};  // a graph, which the op finds in its node
  c10::impl::GenericList items(list->element);
  for (const Argument& item : list->items) {
    items.push_back(value_of(item, values));
    const c10::IValue last = items.get(items.size() - 1);
    TORCH_CHECK(list->element->kind() != c10::TypeKind::IntType || last.isInt(), "expected a list of ints, got ",
                last.tagKind());
    TORCH_CHECK(list->element->kind() != c10::TypeKind::TensorType || last.isTensor(),
                "expected a list of tensors, got ", last.tagKind());
  }
  return items;
}

std::vector<c10::IValue> Interpreter::call(const Node& node, torch::jit::Stack arguments) {
  if (const auto* op = std::get_if<c10::OperatorHandle>(&node.op)) {
    op->callBoxed(&arguments);
    return arguments;
  }
  if (const auto* symbolic = std::get_if<SymbolicOp>(&node.op)) return {(*symbolic)(arguments)};
  return std::get<HigherOrderOp>(node.op)(*this, node, std::move(arguments));
}

// By storages: is_alias_of() asks for addresses of memory, which graph mode takes for a host code's look into it.
const c10::IValue* Interpreter::kept_buffer(const Node& node, const torch::jit::Stack& arguments) const {
  if (!node.given_in_evaluation) return nullptr;
  const c10::IValue& written = arguments.at(*node.given_in_evaluation);
  const auto memory_of = [](const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); };
  const bool is_buffer = written.isTensor() && std::ranges::any_of(buffers_, [&](const at::Tensor& buffer) {
                           return memory_of(buffer) == memory_of(written.toTensor());
                         });
  return is_buffer ? &written : nullptr;
}

void Interpreter::run_node(const Node& node, Values& values) {
  torch::jit::Stack arguments;
  arguments.reserve(node.arguments.size());
  for (const Argument& argument : node.arguments) {
    if (!std::holds_alternative<std::shared_ptr<const Graph>>(argument.value))
      arguments.push_back(value_of(argument, values));
  }
  std::vector<c10::IValue> results;
  const bool evaluates = !modules_[node.module]->is_training();
  if (const c10::IValue* kept = evaluates ? kept_buffer(node, arguments) : nullptr) {
    results.assign(node.results.size(), *kept);
  } else if (node.is_type_assertion && at::autocast::is_autocast_enabled(device_.type())) {
    return;  // autocast gives other types than the graph was exported with
  } else {
    if (evaluates) {
      for (const auto& [place, value] : node.in_evaluation) arguments[place] = value;
    }
    results = call(node, std::move(arguments));
  }
  TORCH_CHECK(results.size() >= node.results.size(), "the op gave ", results.size(), " results, expected ",
              node.results.size());
  for (std::size_t i = 0; i < node.results.size(); ++i) store(node.results[i], results[i], values);
  for (const std::size_t slot : node.last_read) values[slot] = {};
}

std::vector<c10::IValue> Interpreter::run(const Graph& graph, std::vector<c10::IValue> inputs) {
  Values values(graph.slots);
  for (std::size_t i = 0; i < inputs.size(); ++i) values[graph.inputs.at(i).index] = std::move(inputs[i]);
  for (const Node& node : graph.nodes) {
    const UserPlace place(node.place);
    last_node_ = &node;
    run_node(node, values);
  }
  std::vector<c10::IValue> outputs;
  for (const Argument& output : graph.outputs) outputs.push_back(value_of(output, values));
  return outputs;
}

}  // namespace duet::exported
