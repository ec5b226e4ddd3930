#include "base/detail/autograd_graph.h"
#include <unordered_set>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/tensor.h>

namespace duet {

std::vector<torch::autograd::Node*> nodes_of(const at::Tensor& loss) {
  std::vector<torch::autograd::Node*> nodes;
  std::unordered_set<const torch::autograd::Node*> known;
  const auto reach = [&](torch::autograd::Node* node) {
    if (node != nullptr && known.insert(node).second) nodes.push_back(node);
  };
  reach(loss.grad_fn().get());
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    for (const auto& edge : nodes[i]->next_edges()) reach(edge.function.get());
    // It runs another node within its own.
    if (auto* write = dynamic_cast<torch::autograd::CopySlices*>(nodes[i])) reach(write->fn.get());
  }
  return nodes;
}

}  // namespace duet
