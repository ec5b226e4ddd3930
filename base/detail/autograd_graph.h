#pragma once

#include <vector>
#include <ATen/core/Tensor.h>

namespace torch::autograd {
struct Node;
}

namespace duet {

// The nodes that a backward pass from `loss` reaches, each once, the nearest first; they live as long as the loss.
std::vector<torch::autograd::Node*> nodes_of(const at::Tensor& loss);

}  // namespace duet
