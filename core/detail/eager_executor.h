#pragma once

#include "core/detail/train_step.h"

namespace duet {

// Runs each step op by op.
class EagerExecutor : public StepExecutor {
 public:
  explicit EagerExecutor(TrainStep& step) : step_(step) {}

  StepPath choose(const MicroBatches&, const StepObserver&) override { return StepPath::kEager; }
  StepResult run(StepPath, const MicroBatches& micro_batches, StepObserver& observer) override {
    return step_.run(micro_batches, observer);
  }

 private:
  TrainStep& step_;
};

}  // namespace duet
