#include <map>
#include <optional>
#include <string>
#include <vector>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/custom_function.h>
#include "core/exported/interpreter.h"
#include "core/exported/ops.h"
#include "optim/detail/amp.h"

// Ops that run graphs. Their arguments come without the graphs, which stand in the node in their order.

namespace duet::exported {

namespace {

using c10::IValue;
using torch::jit::Stack;
using Values = std::vector<IValue>;

// What a graph among the arguments is called with: those from `first` on, lists unpacked.
Values operands(const Stack& arguments, std::size_t first) {
  Values values;
  for (std::size_t i = first; i < arguments.size(); ++i) {
    if (arguments[i].isList()) {
      const auto items = arguments[i].toListRef();
      values.insert(values.end(), items.begin(), items.end());
    } else {
      values.push_back(arguments[i]);
    }
  }
  return values;
}

// Waits for the device.
bool truth(const IValue& value) {
  if (value.isTensor()) return value.toTensor().item().toBool();
  TORCH_CHECK(value.isBool() || value.isInt(), "expected a condition, got ", value.tagKind());
  return value.isBool() ? value.toBool() : value.toInt() != 0;
}

const Graph& graph_at(const Node& node, std::size_t i) {
  const auto graphs = Graph::of(node);
  TORCH_CHECK(i < graphs.size(), "a graph is missing");
  return *graphs[i];
}

// Gives its first argument; the gradient of the other is zeros.
class WithZeroGradient : public torch::autograd::Function<WithZeroGradient> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& output,
                            const at::Tensor& other) {
    context->saved_data["other"] = other;
    return output.view_as(output);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients.front(), at::zeros_like(context->saved_data["other"].toTensor())};
  }
};

// What a graph's nodes and outputs never read of its inputs, and asks for gradients.
std::vector<at::Tensor> unread(const Graph& graph, const Values& inputs) {
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < inputs.size() && i < graph.inputs.size(); ++i) {
    const bool is_read = graph.read.count(graph.inputs[i].index) > 0;
    if (!is_read && inputs[i].isTensor() && inputs[i].toTensor().requires_grad())
      tensors.push_back(inputs[i].toTensor());
  }
  return tensors;
}

// cond(condition, when_true, when_false, operands). As in PyTorch, what only the other branch reads has a gradient of
// zeros, with which an optimizer goes on, and not none.
Values cond(Interpreter& interpreter, const Node& node, Stack arguments) {
  TORCH_CHECK(!arguments.empty(), "the condition is missing");
  const Graph& graph = graph_at(node, truth(arguments.front()) ? 0 : 1);
  const Values inputs = operands(arguments, 1);
  Values results = interpreter.run(graph, inputs);
  const std::vector<at::Tensor> others = unread(graph, inputs);
  if (others.empty() || !c10::GradMode::is_enabled()) return results;
  for (IValue& result : results) {
    if (!result.isTensor() || !result.toTensor().is_floating_point()) continue;
    for (const at::Tensor& other : others) result = WithZeroGradient::apply(result.toTensor(), other);
    break;
  }
  return results;
}

// while_loop(condition, body, carried, additional): gradients are those of the steps one after the other.
Values while_loop(Interpreter& interpreter, const Node& node, Stack arguments) {
  TORCH_CHECK(arguments.size() == 2 && arguments[0].isList(), "expected carried and additional inputs");
  Values carried = operands({arguments[0]}, 0);
  const Values additional = operands({arguments[1]}, 0);
  const auto inputs = [&] {
    Values values = carried;
    values.insert(values.end(), additional.begin(), additional.end());
    return values;
  };
  while (truth(interpreter.run(graph_at(node, 0), inputs()).at(0))) {
    carried = interpreter.run(graph_at(node, 1), inputs());
  }
  return carried;
}

// wrap_with_set_grad_enabled(enabled, graph, *operands)
Values with_grad_mode(Interpreter& interpreter, const Node& node, Stack arguments) {
  TORCH_CHECK(!arguments.empty() && arguments.front().isBool(), "expected whether gradients are enabled");
  const c10::AutoGradMode mode(arguments.front().toBool());
  return interpreter.run(graph_at(node, 0), operands(arguments, 1));
}

// wrap_with_autocast(device_type, dtype, enabled, cache_enabled, graph, *operands), as a `with` block of Python.
Values with_autocast(Interpreter& interpreter, const Node& node, Stack arguments) {
  TORCH_CHECK(arguments.size() >= 4 && arguments[0].isString() && arguments[2].isBool(),
              "expected device, dtype, enabled and cache_enabled");
  std::optional<at::ScalarType> dtype;
  std::optional<bool> cache;
  if (arguments[1].isInt()) dtype = static_cast<at::ScalarType>(arguments[1].toInt());
  if (arguments[3].isBool()) cache = arguments[3].toBool();
  const AutocastGuard guard(at::Device(arguments[0].toStringRef()).type(), arguments[2].toBool(), dtype, cache);
  return interpreter.run(graph_at(node, 0), operands(arguments, 4));
}

}  // namespace

std::vector<std::shared_ptr<const Graph>> Graph::of(const Node& node) {
  std::vector<std::shared_ptr<const Graph>> graphs;
  for (const Argument& argument : node.arguments) {
    if (const auto* graph = std::get_if<std::shared_ptr<const Graph>>(&argument.value)) graphs.push_back(*graph);
  }
  return graphs;
}

HigherOrderOp higher_order_op(const std::string& target) {
  static const std::map<std::string, HigherOrderOp> known = {
      {"torch.ops.higher_order.cond", cond},
      {"torch.ops.higher_order.while_loop", while_loop},
      {"torch.ops.higher_order.wrap_with_set_grad_enabled", with_grad_mode},
      {"torch.ops.higher_order.wrap_with_autocast", with_autocast}};
  const auto found = known.find(target);
  return found == known.end() ? nullptr : found->second;
}

}  // namespace duet::exported
