#pragma once

#include <ATen/ops/cross_entropy_loss.h>
#include "../../core/detail/counted_targets.h"
#include "../../core/module_task.h"

#include <memory>
#include <utility>

namespace duet {

// A Task over a torch::nn::Module whose forward(image) gives logits [N, classes]: cross entropy against "target", and
// logits as "prediction" from that same forward. Private to the model files, which include the module headers.
template <class Module>
class ClassifierTask : public Task {
 public:
  explicit ClassifierTask(std::shared_ptr<Module> module) : module_(std::move(module)) {}

  NamedTensors named_parameters() const override { return items_of(module_->named_parameters()); }
  NamedTensors named_buffers() const override { return items_of(module_->named_buffers()); }
  void train(bool on) override { module_->train(on); }
  void to(at::Device device) override { module_->to(device); }
  std::vector<ModuleInfo> modules() const override { return modules_of(*module_); }

  StepOutput training_step(const Batch& batch) override { return {loss(logits(batch), batch), {}}; }

  double weight(const Batch& batch) const override {
    return static_cast<double>(counted_targets(batch["target"]));
  }

  NamedTensors validation_step(const Batch& batch) override {
    const at::Tensor prediction = logits(batch);
    return {{"loss", loss(prediction, batch)}, {"prediction", prediction}};
  }

  NamedTensors predict(const Batch& batch) override { return {{"prediction", logits(batch)}}; }

 private:
  at::Tensor logits(const Batch& batch) { return module_->forward(batch["image"]); }
  static at::Tensor loss(const at::Tensor& logits, const Batch& batch) {
    return at::cross_entropy_loss(logits, batch["target"]);
  }

  std::shared_ptr<Module> module_;
};

}  // namespace duet
