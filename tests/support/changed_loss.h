#pragma once

#include <functional>
#include <memory>
#include <utility>
#include "tests/support/toy_tasks.h"

namespace duet::testing {

// The perceptron with something done to its loss. `make_change` is called for each task, since what it gives may have a
// memory.
using ChangeLoss = std::function<at::Tensor(const at::Tensor& loss)>;
inline ToyTask mlp_with_loss(std::function<ChangeLoss()> make_change) {
  struct Changed : Task {
    std::unique_ptr<Task> task = mlp_task().make();
    ChangeLoss change;
    NamedTensors named_parameters() const override { return task->named_parameters(); }
    NamedTensors named_buffers() const override { return task->named_buffers(); }
    void train(bool on) override { task->train(on); }
    void to(at::Device device) override { task->to(device); }
    StepOutput training_step(const Batch& batch) override {
      StepOutput output = task->training_step(batch);
      output.loss = change(output.loss);
      return output;
    }
  };
  ToyTask toy = mlp_task();
  toy.make = [make_change = std::move(make_change)] {
    auto task = std::make_unique<Changed>();
    task->change = make_change();
    return task;
  };
  return toy;
}

}  // namespace duet::testing
