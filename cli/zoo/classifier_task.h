#pragma once

#include <memory>
#include "cli/zoo/losses.h"
#include "core/task.h"

// What the classifiers share. Private to zoo/.
namespace duet {

// "image", or "input" where there is none.
inline at::Tensor input_of(const Batch& batch) {
  return model_input(batch, batch.contains("input") && !batch.contains("image") ? "input" : "image");
}

// A Task over a torch::nn::Module whose forward(input) gives logits [N, classes]: the loss against "target", and logits
// as "prediction" from that same forward.
template <class Module>
std::unique_ptr<Task> make_classifier(std::shared_ptr<Module> module, const LossOptions& options) {
  const auto forward = [](Module& net, const Batch& batch) { return net.forward(input_of(batch)); };
  const auto loss = [options](const at::Tensor& logits, const Batch& batch) {
    return loss_of(options, logits, batch["target"]);
  };
  const auto weight = [options](const Batch& batch) { return loss_weight(options, batch); };
  return make_task(module, forward, loss, weight);
}

}  // namespace duet
