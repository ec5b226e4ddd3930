#pragma once

#include "../core/trainer.h"
#include "../core/trainer_options.h"

#include <memory>

namespace duet {

// Runs each step op by op: what you debug with.
class EagerTrainer : public BaseTrainer {
 public:
  explicit EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {});

 private:
  EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, at::Device device);
  StepResult run_one_step(const MicroBatches& micro_batches, StepObserver& points) override;
};

}  // namespace duet
