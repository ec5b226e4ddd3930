#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/logical_and.h>
#include "cli/zoo/model_input.h"
#include "core/losses.h"
#include "core/task.h"

// What the models for segmentation share. Private to zoo/.
namespace duet {

// In a mask: not to be learned and not counted.
inline constexpr int64_t kNoLabel = 255;

inline std::vector<std::string> losses_of_pixels() { return {"cross_entropy", "focal", "dice"}; }

// A Task over a torch::nn::Module whose forward(image) gives logits [N, classes, H, W] for "target" int64 [N, H, W],
// of which kNoLabel does not count. Logs acc_seg. `options` are the model's.
template <class Module>
class SegmentationTask : public ModuleTask<Module> {
 public:
  template <class Options>
  SegmentationTask(std::shared_ptr<Module> module, const Options& options)
      : ModuleTask<Module>(
            std::move(module), logits_of,
            [options = options.loss](Module&, const at::Tensor& logits, const Batch& batch) {
              return loss_and_accuracy(options, logits, batch["target"]);
            },
            [options = options.loss, classes = options.num_classes](const Batch& batch) {
              return loss_weight(options, batch["target"],
                                 {.ignored = kNoLabel, .classes = classes, .sample_ids = batch.sample_ids()});
            }),
        options_(options.loss) {}

  // Without the accuracy, which metrics say better.
  NamedTensors validation_step(const Batch& batch) override {
    const at::Tensor logits = logits_of(this->module(), batch);
    return {{"loss", loss_of(options_, logits, batch["target"], kNoLabel)}, {"prediction", logits}};
  }

 private:
  static at::Tensor logits_of(Module& model, const Batch& batch) { return model.forward(model_input(batch, "image")); }

  static StepOutput loss_and_accuracy(const LossOptions& options, const at::Tensor& logits, const at::Tensor& target) {
    const at::Tensor loss = loss_of(options, logits, target, kNoLabel);
    const at::Tensor counts = target.ne(kNoLabel);
    const at::Tensor right = at::logical_and(at::argmax(logits.detach(), 1).eq(target), counts);
    return {loss, {{"acc_seg", right.sum() / counts.sum().clamp_min(1)}}};
  }

  LossOptions options_;
};

template <class Module, class Options>
std::unique_ptr<Task> make_segmentation(std::shared_ptr<Module> module, const Options& options) {
  return std::make_unique<SegmentationTask<Module>>(std::move(module), options);
}

}  // namespace duet
