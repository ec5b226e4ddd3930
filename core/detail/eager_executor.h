#pragma once

#include "core/detail/step_executor.h"

namespace duet {

// Runs everything op by op.
class EagerExecutor : public StepExecutor {
 public:
  explicit EagerExecutor(StepCode& code) : code_(code) {}

  StepPath choose(const MicroBatches&, const StepObserver&) override { return StepPath::kEager; }
  StepResult run(StepPath, const MicroBatches& micro_batches, StepObserver& observer) override {
    return code_.run(micro_batches, observer);
  }

 private:
  StepCode& code_;
};

}  // namespace duet
