#pragma once

#include <memory>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/logical_and.h>
#include "cli/zoo/losses.h"
#include "core/task.h"

// What the models for segmentation share. Private to zoo/.
namespace duet {

// A Task over a torch::nn::Module whose forward(image) gives logits [N, classes, H, W] for "target" int64 [N, H, W],
// of which kNoLabel does not count. Logs acc_seg.
template <class Module>
class SegmentationTask : public ModuleTask<Module> {
 public:
  SegmentationTask(std::shared_ptr<Module> module, const LossOptions& options)
      : ModuleTask<Module>(
            std::move(module), logits_of,
            [options](Module&, const at::Tensor& logits, const Batch& batch) {
              return loss_and_accuracy(options, logits, batch["target"]);
            },
            pixels_in),
        options_(options) {}

  // Without the accuracy, which metrics say better.
  NamedTensors validation_step(const Batch& batch) override {
    const at::Tensor logits = logits_of(this->module(), batch);
    return {{"loss", label_loss(options_, logits, batch["target"])}, {"prediction", logits}};
  }

 private:
  static at::Tensor logits_of(Module& model, const Batch& batch) { return model.forward(model_input(batch, "image")); }

  static StepOutput loss_and_accuracy(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
    const at::Tensor right = at::logical_and(at::argmax(logits.detach(), 1).eq(target), target.ne(kNoLabel));
    return {label_loss(options, logits, target), {{"acc_seg", right.sum() / label_count(target)}}};
  }

  static double pixels_in(const Batch& batch) {
    return static_cast<double>(counted_targets(batch["target"], kNoLabel));
  }

  LossOptions options_;
};

template <class Module>
std::unique_ptr<Task> make_segmentation(std::shared_ptr<Module> module, const LossOptions& options) {
  return std::make_unique<SegmentationTask<Module>>(std::move(module), options);
}

}  // namespace duet
