#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include <ATen/autocast_mode.h>
#include <c10/core/GradMode.h>
#include "base/error.h"
#include "core/exported/interpreter.h"
#include "core/exported/ops.h"

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

// cond(condition, when_true, when_false, operands)
Values cond(Interpreter& interpreter, const Node& node, Stack arguments) {
  TORCH_CHECK(!arguments.empty(), "the condition is missing");
  return interpreter.run(graph_at(node, truth(arguments.front()) ? 0 : 1), operands(arguments, 1));
}

// while_loop(condition, body, carried, additional)
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

// Autocast of one kind of device as a `with` block of Python sets it.
class Autocast {
 public:
  Autocast(at::DeviceType device, std::optional<at::ScalarType> dtype, bool enabled, std::optional<bool> cache)
      : device_(device),
        dtype_(at::autocast::get_autocast_dtype(device)),
        enabled_(at::autocast::is_autocast_enabled(device)),
        cache_(at::autocast::is_autocast_cache_enabled()) {
    at::autocast::set_autocast_enabled(device_, enabled);
    if (dtype) at::autocast::set_autocast_dtype(device_, *dtype);
    at::autocast::increment_nesting();
    if (cache) at::autocast::set_autocast_cache_enabled(*cache);
  }
  ~Autocast() {
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(device_, enabled_);
    at::autocast::set_autocast_dtype(device_, dtype_);
    at::autocast::set_autocast_cache_enabled(cache_);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  at::ScalarType dtype_;
  bool enabled_, cache_;
};

// wrap_with_autocast(device_type, dtype, enabled, cache_enabled, graph, *operands)
Values with_autocast(Interpreter& interpreter, const Node& node, Stack arguments) {
  TORCH_CHECK(arguments.size() >= 4 && arguments[0].isString() && arguments[2].isBool(),
              "expected device, dtype, enabled and cache_enabled");
  std::optional<at::ScalarType> dtype;
  if (arguments[1].isInt()) dtype = static_cast<at::ScalarType>(arguments[1].toInt());
  std::optional<bool> cache;
  if (arguments[3].isBool()) cache = arguments[3].toBool();
  const Autocast scope(at::Device(arguments[0].toStringRef()).type(), dtype, arguments[2].toBool(), cache);
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
