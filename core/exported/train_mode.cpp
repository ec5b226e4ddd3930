#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
#include "base/detail/op_rules.h"
#include "core/exported/ops.h"

// A graph is exported in one mode. What module.eval() would change of a graph in training mode is undone here.

namespace duet::exported {

namespace {

using Slots = std::set<std::size_t>;

const c10::OperatorHandle* op_of(const Node& node) { return std::get_if<c10::OperatorHandle>(&node.op); }

const c10::IValue* constant_at(const Node& node, std::size_t i) {
  return std::get_if<c10::IValue>(&node.arguments[i].value);
}

std::size_t place_of(const c10::OperatorHandle& op, std::string_view argument) {
  const auto& arguments = op.schema().arguments();
  const auto found = std::ranges::find(arguments, argument, [](const c10::Argument& a) { return a.name(); });
  return static_cast<std::size_t>(found - arguments.begin());
}

// Norms without running statistics use the batch's in either mode.
bool has_running_statistics(const Node& node, const c10::OperatorHandle& op) {
  const std::size_t place = place_of(op, "running_mean");
  const c10::IValue* mean = place < node.arguments.size() ? constant_at(node, place) : nullptr;
  return mean == nullptr || !mean->isNone();
}

constexpr std::array<std::string_view, 3> kFlags = {"train", "training", "use_input_stats"};
constexpr const char* kAttentionRate = "dropout_p";  // of attention, which has no flag

bool has_flag(const c10::OperatorHandle& op) {
  return std::ranges::any_of(op.schema().arguments(), [](const c10::Argument& argument) {
    return argument.name() == kAttentionRate || std::ranges::find(kFlags, argument.name()) != kFlags.end();
  });
}

void turn_off_arguments(Node& node, const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue* value = constant_at(node, i);
    if (value == nullptr) continue;
    const std::string& name = arguments[i].name();
    const bool is_flag = std::ranges::find(kFlags, name) != kFlags.end();
    if (is_flag && value->isBool() && value->toBool() && has_running_statistics(node, op)) {
      node.in_evaluation.emplace_back(i, false);
    } else if (name == kAttentionRate && value->isDouble() && value->toDouble() > 0) {
      node.in_evaluation.emplace_back(i, 0.0);
    }
  }
}

// The argument by which the op writes to one of `buffers`; its results that share memory with them join them.
std::optional<std::size_t> written_buffer(const Node& node, const c10::OperatorHandle& op, Slots& buffers) {
  const auto& arguments = op.schema().arguments();
  std::optional<std::size_t> written;
  bool shares = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const auto* slot = std::get_if<Slot>(&node.arguments[i].value);
    if (arguments[i].alias_info() == nullptr || slot == nullptr || buffers.count(slot->index) == 0) continue;
    shares = true;
    if (arguments[i].alias_info()->isWrite() && !written) written = i;
  }
  if (!shares) return std::nullopt;
  for (const Result& result : node.results) {
    for (const auto& slot : result.slots) {
      if (slot) buffers.insert(*slot);
    }
  }
  return written;
}

// Which inputs of a graph within the graph are these values: its operands stand behind it in the node.
Slots handed_on(const Node& node, const Graph& inner, const Slots& values) {
  std::vector<std::optional<std::size_t>> operands;
  const auto add = [&](const Argument& argument) {
    const auto* slot = std::get_if<Slot>(&argument.value);
    operands.push_back(slot == nullptr ? std::nullopt : std::optional(slot->index));
  };
  for (const Argument& argument : node.arguments) {
    const auto* list = std::get_if<List>(&argument.value);
    if (std::holds_alternative<std::shared_ptr<const Graph>>(argument.value)) {
      operands.clear();
    } else if (list != nullptr) {
      std::ranges::for_each(list->items, add);
    } else {
      add(argument);
    }
  }
  Slots inputs;
  for (std::size_t i = 0; i < operands.size() && i < inner.inputs.size(); ++i) {
    if (operands[i] && values.count(*operands[i]) > 0) inputs.insert(inner.inputs[i].index);
  }
  return inputs;
}

void mark(Graph& graph, Slots buffers) {
  for (Node& node : graph.nodes) {
    if (const auto* op = op_of(node)) {
      turn_off_arguments(node, *op);
      const std::optional<std::size_t> written = written_buffer(node, *op, buffers);
      if (!has_flag(*op)) node.given_in_evaluation = written;
    }
    for (Argument& argument : node.arguments) {
      auto* inner = std::get_if<std::shared_ptr<const Graph>>(&argument.value);
      if (inner == nullptr) continue;
      Graph changed = **inner;
      mark(changed, handed_on(node, changed, buffers));
      *inner = std::make_shared<const Graph>(std::move(changed));
    }
  }
}

}  // namespace

void mark_training_ops(Graph& graph, const std::vector<ModelTensor>& tensors) {
  Slots buffers;
  for (const ModelTensor& tensor : tensors) {
    if (tensor.kind == ModelTensor::Kind::kBuffer) buffers.insert(tensor.slot);
  }
  mark(graph, std::move(buffers));
}

namespace {

// Calls visit(node, op) for every op, those of graphs within the graph too.
template <class Visit>
void for_each_op(const Graph& graph, const Visit& visit) {
  for (const Node& node : graph.nodes) {
    for (const auto& inner : Graph::of(node)) for_each_op(*inner, visit);
    if (const auto* op = op_of(node)) visit(node, *op);
  }
}

bool is_switched(const Node& node) { return !node.in_evaluation.empty() || node.given_in_evaluation.has_value(); }

}  // namespace

ModeOps mode_ops(const Program& program) {
  ModeOps ops;
  for_each_op(program.graph, [&](const Node& node, const c10::OperatorHandle& op) {
    const std::string& module = program.modules[node.module].path;
    const std::string text = node.target.substr(std::string_view("torch.ops.").size()) +
                             (module.empty() ? "" : " in " + module) +
                             (node.place.empty() ? "" : " (" + node.place + ")");
    if (is_switched(node)) {
      ops.switched.push_back(text);
    } else if (is_random(op) && !has_flag(op)) {
      ops.always_random.push_back(text);
    }
  });
  return ops;
}

bool is_in_evaluation_mode(const Program& program) {
  bool is_off = false, is_on = false;
  for_each_op(program.graph, [&](const Node& node, const c10::OperatorHandle& op) {
    is_on = is_on || is_switched(node);
    const auto& arguments = op.schema().arguments();
    for (std::size_t i = 0; i < arguments.size(); ++i) {
      if (std::ranges::find(kFlags, arguments[i].name()) == kFlags.end()) continue;
      const c10::IValue* value = constant_at(node, i);
      const bool flag = value != nullptr && value->isBool() && value->toBool();
      (flag ? is_on : is_off) = true;
    }
  });
  return is_off && !is_on;
}

}  // namespace duet::exported
