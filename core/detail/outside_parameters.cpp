#include "core/detail/outside_parameters.h"
#include <algorithm>
#include <unordered_set>
#include <utility>
#include <c10/core/UndefinedTensorImpl.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include "base/log.h"

namespace duet {

namespace {

// The leaves that a backward pass from `loss` writes gradients to.
std::vector<at::Tensor> leaves_of(const at::Tensor& loss) {
  std::vector<at::Tensor> leaves;
  std::vector<torch::autograd::Node*> open;
  std::unordered_set<const torch::autograd::Node*> known;
  const auto reach = [&](torch::autograd::Node* node) {
    if (node != nullptr && known.insert(node).second) open.push_back(node);
  };
  reach(loss.grad_fn().get());
  while (!open.empty()) {
    torch::autograd::Node* const node = open.back();
    open.pop_back();
    if (auto* leaf = dynamic_cast<torch::autograd::AccumulateGrad*>(node)) leaves.push_back(leaf->variable);
    for (const auto& edge : node->next_edges()) reach(edge.function.get());
  }
  return leaves;
}

}  // namespace

OutsideParameters::OutsideParameters(const NamedTensors& own, const NamedTensors& others) {
  for (const auto& parameter : own) own_.insert(parameter.second.unsafeGetTensorImpl());
  for (const auto& parameter : others) {
    if (!own_.contains(parameter.second.unsafeGetTensorImpl())) others_.push_back(parameter.second);
  }
}

std::vector<at::Tensor> OutsideParameters::leaves_outside(const at::Tensor& loss) const {
  std::vector<at::Tensor> outside = leaves_of(loss);
  std::erase_if(outside, [this](const at::Tensor& leaf) { return own_.contains(leaf.unsafeGetTensorImpl()); });
  return outside;
}

// All of it runs, not the part that leads to the trained ones: a node that runs a backward pass of its own (reentrant
// checkpointing) reaches parameters to which no edge of this graph leads.
void OutsideParameters::backward_past(const at::Tensor& loss) const {
  std::vector<at::Tensor> outside = leaves_outside(loss);
  outside.insert(outside.end(), others_.begin(), others_.end());
  std::vector<at::Tensor> before;
  for (const at::Tensor& leaf : outside) before.push_back(std::exchange(leaf.mutable_grad(), at::Tensor()));
  const auto put_back = c10::make_scope_exit([&] {
    for (std::size_t i = outside.size(); i-- > 0;) outside[i].mutable_grad() = before[i];
  });
  loss.backward();
}

void OutsideParameters::look_for(const at::Tensor& loss) {
  constexpr int64_t kLooks = 2;
  if (looks_ >= kLooks || !loss.defined()) return;
  ++looks_;
  std::vector<at::Tensor> outside = leaves_outside(loss);
  if (looks_ < kLooks) {
    for (const at::Tensor& leaf : outside) reached_.emplace_back(leaf.getIntrusivePtr());
    return;
  }
  // A batch's own tensor is another one each time, and an address may come again; who is referred to keeps his.
  std::erase_if(outside, [&](const at::Tensor& leaf) {
    return std::none_of(reached_.begin(), reached_.end(),
                        [&](const auto& before) { return before._unsafe_get_target() == leaf.unsafeGetTensorImpl(); });
  });
  reached_.clear();
  if (outside.empty()) return;
  log_warning(c10::str("[TrainStep] the loss gives gradients to ", outside.size(),
                       " tensors that are no parameters of the task (the first is ", outside.front().scalar_type(),
                       outside.front().sizes(), "), such as another network that it calls. This trainer neither uses ",
                       "nor clears them; where somebody else does, graph mode runs steps op by op. Set ",
                       "TrainerOptions::allow_untrained = true, which gives them none, or freeze that network with ",
                       "requires_grad_(false) if nobody trains it"));
}

}  // namespace duet
