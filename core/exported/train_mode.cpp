#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include "base/detail/op_rules.h"
#include "core/exported/ops.h"

// A graph is exported in one mode. What module.eval() would change of a graph in training mode is undone here.

namespace duet::exported {

namespace {

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

// The first argument that the op writes to.
std::optional<std::size_t> written_argument(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  const auto written = std::ranges::find_if(arguments, writes);
  if (written == arguments.end()) return std::nullopt;
  return static_cast<std::size_t>(written - arguments.begin());
}

}  // namespace

void mark_training_ops(Graph& graph) {
  for (Node& node : graph.nodes) {
    if (const auto* op = op_of(node)) {
      turn_off_arguments(node, *op);
      if (!has_flag(*op)) node.given_in_evaluation = written_argument(*op);
    }
    for (Argument& argument : node.arguments) {
      auto* inner = std::get_if<std::shared_ptr<const Graph>>(&argument.value);
      if (inner == nullptr) continue;
      Graph changed = **inner;
      mark_training_ops(changed);
      *inner = std::make_shared<const Graph>(std::move(changed));
    }
  }
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

// Whether it has other arguments in evaluation, or writes to a buffer.
bool is_switched(const Node& node, const Program& program) {
  if (!node.in_evaluation.empty()) return true;
  if (!node.given_in_evaluation) return false;
  const auto* written = std::get_if<Slot>(&node.arguments[*node.given_in_evaluation].value);
  return written != nullptr && std::ranges::any_of(program.tensors, [&](const ModelTensor& tensor) {
           return tensor.kind == ModelTensor::Kind::kBuffer && tensor.slot == written->index;
         });
}

}  // namespace

ModeOps mode_ops(const Program& program) {
  ModeOps ops;
  for_each_op(program.graph, [&](const Node& node, const c10::OperatorHandle& op) {
    const std::string& module = program.modules[node.module].path;
    const std::string text = node.target.substr(std::string_view("torch.ops.").size()) +
                             (module.empty() ? "" : " in " + module) +
                             (node.place.empty() ? "" : " (" + node.place + ")");
    if (is_switched(node, program)) {
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
    is_on = is_on || is_switched(node, program);
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
