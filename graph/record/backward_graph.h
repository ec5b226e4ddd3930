#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/batch.h"

namespace torch::autograd {
struct Node;
}

namespace duet {

// The autograd graph of a loss in which a backward pass runs LibTorch's own code alone. What the pass does then follows
// from the ops that made the graph, and from what of it they do not tell: what requires a gradient, where gradient mode
// was off.
class BackwardGraph {
 public:
  // None where other code would run: functions and hooks of users, TorchScript's interpreter; or where gradients would
  // go to other tensors than the parameters.
  static std::optional<BackwardGraph> of(const at::Tensor& loss, const NamedTensors& parameters);

  // Only while the loss lives: as the pass leaves it, so that nobody can go through it again.
  void release() const;

  // Likewise shaped, with the same parameters at its ends.
  bool operator==(const BackwardGraph& other) const { return shape_ == other.shape_; }
  std::size_t size() const { return shape_.size(); }

 private:
  std::vector<torch::autograd::Node*> nodes_;
  std::vector<std::uintptr_t> shape_;  // by node: its class, edges, parameter
};

}  // namespace duet
