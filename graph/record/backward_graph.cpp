#include "graph/record/backward_graph.h"
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <torch/csrc/autograd/anomaly_mode.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/functions/tensor.h>
#include <torch/csrc/autograd/node.h>
#include "base/detail/torch_versions.h"

namespace duet {

namespace {

using torch::autograd::AccumulateGrad;
using torch::autograd::CopyBackwards;
using torch::autograd::CopySlices;
using torch::autograd::Node;

bool is_of_libtorch(const std::type_info& kind) {
  static const std::string_view generated = "N5torch8autograd9generated";  // mangled
  return std::string_view(kind.name()).starts_with(generated) || kind == typeid(AccumulateGrad) ||
         kind == typeid(CopySlices) || kind == typeid(CopyBackwards);
}

// Or may have: Python can reach the hooks of what it has an object of.
bool has_hooks(Node& node) {
  return !node.pre_hooks().empty() || !node.post_hooks().empty() || !node.tensor_pre_hooks().empty() ||
         !node.retains_grad_hooks().empty() || node.tensor_post_acc_grad_hooks() || is_known_to_python(node);
}

}  // namespace

std::optional<BackwardGraph> BackwardGraph::of(const at::Tensor& loss, const NamedTensors& parameters) {
  if (!loss.grad_fn() || torch::autograd::AnomalyMode::is_enabled()) return {};
  std::unordered_set<const at::TensorImpl*> trained;
  for (const auto& parameter : parameters) trained.insert(parameter.second.unsafeGetTensorImpl());
  BackwardGraph graph;
  std::unordered_map<const Node*, std::size_t> places;
  const auto reach = [&](Node* node) {
    const auto [place, is_new] = places.try_emplace(node, graph.nodes_.size());
    if (is_new) graph.nodes_.push_back(node);
    graph.shape_.push_back(place->second);
  };
  graph.shape_.push_back(loss.output_nr());
  reach(loss.grad_fn().get());
  for (std::size_t i = 0; i < graph.nodes_.size(); ++i) {
    Node& node = *graph.nodes_[i];
    const std::type_info& kind = typeid(node);
    if (!is_of_libtorch(kind) || has_hooks(node)) return {};
    graph.shape_.push_back(reinterpret_cast<std::uintptr_t>(&kind));
    graph.shape_.push_back(node.num_outputs());
    for (const torch::autograd::Edge& edge : node.next_edges()) {
      graph.shape_.push_back(edge.is_valid() ? edge.input_nr : -1);
      if (edge.is_valid()) reach(edge.function.get());
    }
    if (kind == typeid(CopySlices)) reach(static_cast<CopySlices&>(node).fn.get());
    if (kind != typeid(AccumulateGrad)) continue;
    const at::Tensor& variable = static_cast<AccumulateGrad&>(node).variable;
    if (!variable.requires_grad() || trained.count(variable.unsafeGetTensorImpl()) == 0) return {};
    graph.shape_.push_back(reinterpret_cast<std::uintptr_t>(variable.unsafeGetTensorImpl()));
  }
  return graph;
}

void BackwardGraph::release() const {
  // Backwards: CopySlices lets go of a node that comes after it.
  for (auto node = nodes_.rbegin(); node != nodes_.rend(); ++node) (*node)->release_variables();
}

}  // namespace duet
