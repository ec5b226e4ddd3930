#pragma once

#include <memory>
#include <ATen/ops/cross_entropy_loss.h>
#include "core/task.h"

namespace duet {

// A Task over a torch::nn::Module whose forward(image) gives logits [N, classes]: cross entropy against "target", and
// logits as "prediction" from that same forward. Private to the model files, which include the module headers.
template <class Module>
std::unique_ptr<Task> make_classifier(std::shared_ptr<Module> module) {
  const auto forward = [](Module& net, const Batch& batch) { return net.forward(batch["image"]); };
  const auto loss = [](const at::Tensor& logits, const Batch& batch) {
    return at::cross_entropy_loss(logits, batch["target"]);
  };
  const auto weight = [](const Batch& batch) { return static_cast<double>(counted_targets(batch["target"])); };
  return make_task(module, forward, loss, weight);
}

}  // namespace duet
