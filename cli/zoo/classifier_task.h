#pragma once

#include <memory>
#include <string>
#include <vector>
#include "cli/zoo/model_input.h"
#include "core/losses.h"
#include "core/task.h"

// What the classifiers share. Private to zoo/.
namespace duet {

// The first of `names` that the batch has.
inline at::Tensor input_of(const Batch& batch, const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    if (batch.has(name)) return model_input(batch, name);
  }
  return model_input(batch, names.front());
}

// A Task over a torch::nn::Module that reads the first of `names` in the batch and whose forward(input) gives logits
// [N, classes]: the loss against "target", and logits as "prediction" from that same forward. `options` are the
// model's.
template <class Module, class Options>
std::unique_ptr<Task> make_classifier(std::shared_ptr<Module> module, const Options& options,
                                      const std::vector<std::string>& names = {"image"}) {
  const auto forward = [names](Module& net, const Batch& batch) { return net.forward(input_of(batch, names)); };
  const auto loss = [options = options.loss](const at::Tensor& logits, const Batch& batch) {
    return loss_of(options, logits, batch["target"]);
  };
  const auto weight = [options = options.loss, classes = options.num_classes](const Batch& batch) {
    const at::Tensor& target = batch["target"];
    const bool is_classes = target.dim() == 1;  // else the model or the loss says what does not fit
    return loss_weight(options, target, {.classes = is_classes ? classes : 0, .sample_ids = batch.sample_ids()});
  };
  return make_task(module, forward, loss, weight);
}

}  // namespace duet
