#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/detail/autograd_watch.h"

namespace duet {

struct StepProgram;

// A backward pass of a recorded step in which LibTorch's own code runs alone. Over a graph that the same ops have made
// it does the same.
struct BackwardPass {
  using Shape = std::vector<std::uintptr_t>;

  Shape shape{};                                           // of its graph
  std::vector<int64_t> settings{};                         // of the thread (append_settings)
  std::vector<int> gradients_before{}, gradients_after{};  // values, by parameter; -1: none
  std::size_t begin = 0, end = 0;                          // its ops

  int64_t bytes() const { return static_cast<int64_t>(8 * (shape.size() + settings.size() + gradients_before.size())); }
};

// Of each node of the loss's graph: its class, when it was made and whom it hands gradients to; and the versions of
// what it may have saved. None where other code than LibTorch's would run (functions and hooks of users, TorchScript's
// interpreter), where nodes are older than the step, so that nobody has heard the ops that made them, and where what
// they saved lies in other memory by now.
std::optional<BackwardPass::Shape> shape_of_backward(const at::Tensor& loss, const AutogradWatch& watch);

// As the pass leaves the graph, so that nobody can go through it again.
void release_graph(const at::Tensor& loss);

// Whether the pass does nothing but make these gradients: out of what the ops before it have used, without random
// numbers and without values that the host reads.
bool makes_gradients_alone(const StepProgram& program, const BackwardPass& pass);

}  // namespace duet
