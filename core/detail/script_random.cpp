#include "core/detail/script_random.h"
#include <initializer_list>
#include <optional>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/jit/ir/constants.h>
#include "base/detail/op_rules.h"

namespace duet {

namespace {

using torch::jit::Block;
using torch::jit::Node;

bool draws(const Node& node) {
  if (!node.kind().is_aten() || node.maybeSchema() == nullptr) return false;
  const auto op = c10::Dispatcher::singleton().findSchema(node.schema().operator_name());
  return op && is_random(*op);
}

// Of the first of `names` that the op has; no value for one that the script computes.
struct Input {
  bool exists = false;
  std::optional<c10::IValue> constant = std::nullopt;
};

Input input_of(const Node& node, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const auto index = node.schema().argumentIndexWithName(name);
    if (index) return {true, torch::jit::toIValue(node.input(static_cast<std::size_t>(*index)))};
  }
  return {};
}

bool is_always_random(const Node& node) {
  if (!draws(node)) return false;
  const Input mode = input_of(node, {"train", "training"});
  if (mode.exists && !(mode.constant && mode.constant->isBool() && mode.constant->toBool())) return false;
  // Of attention: 0 outside of training, and the op has no flag for it.
  const Input attention = input_of(node, {"dropout_p"});
  if (attention.exists && !attention.constant) return false;
  const Input rate = mode.exists ? input_of(node, {"p", "dropout"}) : attention;
  return !(rate.constant && rate.constant->isDouble() && rate.constant->toDouble() == 0);
}

// "layers.0.dropout": the path of the module whose forward() holds the op; empty for the outermost.
std::string module_of(const Node& node) {
  std::string path;
  const auto calls = node.callstack();
  if (!calls) return path;
  for (const auto& call : (*calls)->vec()) {
    const auto& module = std::get<2>(call);
    // A method that calls another of its own module, and a free function, are no further module.
    if (!module || module->instance_name() == "SELF" || module->instance_name() == "INSTANCE_NAME_UNKNOWN") continue;
    path += (path.empty() ? "" : ".") + module->instance_name();
  }
  return path;
}

void collect(const Block& block, std::vector<std::string>& found) {
  for (const Node* node : block.nodes()) {
    if (node->kind() != c10::prim::If) {
      for (const Block* inner : node->blocks()) collect(*inner, found);
    }
    if (!is_always_random(*node)) continue;
    const std::string module = module_of(*node);
    found.push_back(node->kind().toQualString() + (module.empty() ? " in forward()" : " in " + module));
  }
}

}  // namespace

std::vector<std::string> always_random(const torch::jit::Graph& graph) {
  std::vector<std::string> found;
  collect(*graph.block(), found);
  return found;
}

}  // namespace duet
