#include "graph/record/backward_pass.h"
#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include "base/detail/autograd_graph.h"
#include "base/detail/torch_versions.h"
#include "graph/record/step_program.h"

namespace duet {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::Node;

bool is_of_libtorch(const std::type_info& kind) {
  static constexpr std::string_view kGenerated = "N5torch8autograd9generated";  // mangled
  return std::string_view(kind.name()).starts_with(kGenerated) || kind == typeid(AccumulateGrad) ||
         kind == typeid(torch::autograd::CopySlices) || kind == typeid(torch::autograd::CopyBackwards);
}

bool may_have_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks() || may_be_known_to_python(node);
}

// The tensor whose gradient the node writes; null: it is no such node.
const at::TensorImpl* leaf_of(const Node& node) {
  const bool is_end = typeid(node) == typeid(AccumulateGrad);
  return is_end ? static_cast<const AccumulateGrad&>(node).variable.unsafeGetTensorImpl() : nullptr;
}

}  // namespace

std::optional<BackwardPass::Shape> shape_of_backward(const at::Tensor& loss, const AutogradWatch& watch) {
  const std::vector<Node*> nodes = nodes_of(loss);
  const std::optional<std::vector<uint32_t>> changes = watch.changes();
  if (nodes.empty() || !changes) return {};
  // Nodes are numbered as they are made, which is the order that autograd's engine follows.
  const auto name_of = [newest = nodes.front()->sequence_nr()](const Node& node) {
    const at::TensorImpl* leaf = leaf_of(node);
    return leaf != nullptr ? reinterpret_cast<std::uintptr_t>(leaf)
                           : static_cast<std::uintptr_t>(newest - node.sequence_nr());
  };
  BackwardPass::Shape shape(changes->begin(), changes->end());
  shape.push_back(static_cast<std::uintptr_t>(loss.output_nr()));
  for (Node* node : nodes) {
    const std::type_info& kind = typeid(*node);
    if (!is_of_libtorch(kind) || may_have_hooks(*node) || node->sequence_nr() < watch.first_node()) return {};
    shape.push_back(reinterpret_cast<std::uintptr_t>(&kind));
    shape.push_back(name_of(*node));
    if (const at::TensorImpl* leaf = leaf_of(*node)) {
      shape.push_back(leaf->requires_grad());
      shape.push_back(
          static_cast<std::uintptr_t>(node->input_metadata(0).grad_dtype().value_or(c10::ScalarType::Undefined)));
    }
    for (const auto& edge : node->next_edges()) {
      shape.push_back(edge.is_valid() ? edge.input_nr : -1);
      if (edge.is_valid()) shape.push_back(name_of(*edge.function));
    }
  }
  return shape;
}

void release_graph(const at::Tensor& loss) {
  std::vector<Node*> nodes = nodes_of(loss);
  std::ranges::reverse(nodes);  // CopySlices lets go of the node within it, which comes later
  for (Node* node : nodes) node->release_variables();
}

namespace {

std::unordered_set<int> storages_of(const std::vector<int>& values, const ValueTable& table) {
  std::unordered_set<int> storages;
  for (const int value : values) {
    if (value >= 0) storages.insert(table.values()[value].storage);
  }
  return storages;
}

// Calls visit(value) for all that the op, or what the host called for it, reads, makes or changes.
template <class Visit>
void for_each_used(const StepProgram::Op& op, Visit visit) {
  for_each_value(op.arguments, visit);
  if (op.recorded_as) for_each_value(op.recorded_as->arguments, visit);
  for_each_value(op.results, visit);
  for_each_written(op, visit);
}

}  // namespace

bool makes_gradients_alone(const StepProgram& program, const BackwardPass& pass) {
  const ValueTable& table = program.table;
  const auto before = storages_of(pass.gradients_before, table), after = storages_of(pass.gradients_after, table);
  std::unordered_set<int> known, made;  // before the pass, and in it
  for (std::size_t i = 0; i < pass.begin; ++i) {
    for_each_used(program.ops[i], [&](int value) { known.insert(table.values()[value].storage); });
  }
  const auto is_read = [&](std::size_t op) { return pass.begin <= op && op < pass.end; };
  bool alone = std::ranges::none_of(program.reads, is_read);
  for (std::size_t i = pass.begin; i < pass.end; ++i) {
    alone = alone && !program.ops[i].random;
    for_each_used(program.ops[i], [&](int value) {
      const auto& [storage, wrapped] = std::pair(table.values()[value].storage, table.values()[value].wrapped);
      if (known.contains(storage) || !made.insert(storage).second) return;
      alone = alone && (!table.storages()[storage].external || table.storages()[storage].contents || wrapped);
    });
    for_each_written(program.ops[i], [&](int value) {
      const int storage = table.values()[value].storage;
      alone = alone && (made.contains(storage) || before.contains(storage));
    });
  }
  const auto stays_inside = [&](int value) {
    const int storage = table.values()[value].storage;
    alone = alone && (!made.contains(storage) || after.contains(storage));
  };
  for (std::size_t i = pass.end; i < program.ops.size(); ++i) for_each_used(program.ops[i], stays_inside);
  for (const int value : program.results) {
    if (value >= 0) stays_inside(value);
  }
  for (const int storage : made) alone = alone && (!table.storages()[storage].kept || after.contains(storage));
  for (std::size_t i = 0; i < pass.gradients_after.size(); ++i) {
    const int value = pass.gradients_after[i];
    if (value < 0 || value == pass.gradients_before[i]) continue;
    alone = alone && made.contains(table.values()[value].storage) && !table.storage_of(value).external;
  }
  return alone;
}

}  // namespace duet
