#pragma once

#include <torch/torch.h>
#include "tests/support/toy_tasks.h"

namespace duet::testing {

// A small classifier of the batches that mlp_task() makes.
struct TwoLayers : torch::nn::Module {
  torch::nn::Linear a{16, 8}, b{8, 5};
  TwoLayers() {
    register_module("a", a);
    register_module("b", b);
  }
  at::Tensor forward(const at::Tensor& x) { return b(torch::relu(a(x))); }
};

inline at::Tensor plain_loss(TwoLayers& net, const Batch& batch) {
  return torch::nn::functional::cross_entropy(net.forward(batch["input"]), batch["target"]);
}

inline Batch batch_at(int64_t n, int64_t size = 8) { return mlp_task().batch(size, static_cast<uint64_t>(n)); }

}  // namespace duet::testing
