#pragma once

#include <memory>
#include <duet/duet.h>

// A classifier of "image" (uint8 is divided by 255), or of its pixels, over a module whose forward(image) gives logits
// [N, classes, ...]. Pixels whose label is `ignored` do not count.
template <class Module, class Options>
std::unique_ptr<duet::Task> make_image_classifier(std::shared_ptr<Module> module, const Options& options,
                                                  int64_t ignored = -100) {
  const auto forward = [](Module& net, const duet::Batch& batch) {
    const at::Tensor& image = batch["image"];
    return net.forward(image.scalar_type() == at::kByte ? image.to(at::kFloat) / 255 : image);
  };
  const auto loss = [options = options.loss, ignored](const at::Tensor& logits, const duet::Batch& batch) {
    return duet::loss_of(options, logits, batch["target"], ignored);
  };
  const auto weight = [options = options.loss, classes = options.num_classes, ignored](const duet::Batch& batch) {
    const at::Tensor& target = batch["target"];
    const bool is_classes = target.dim() == 1 || target.dim() == 3;
    return duet::loss_weight(
        options, target, {.ignored = ignored, .classes = is_classes ? classes : 0, .sample_ids = batch.sample_ids()});
  };
  return duet::make_task(module, forward, loss, weight);
}
