#include "eager/eager_trainer.h"

namespace duet {

EagerTrainer::EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options)
    : EagerTrainer(std::move(task), options, (options.validate(), options.resolved_device())) {}

EagerTrainer::EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, at::Device device)
    : BaseTrainer("eager", std::make_unique<TrainStep>(std::move(task), device, options.step()), device, options.loop) {}

StepResult EagerTrainer::run_one_step(const MicroBatches& micro_batches, StepObserver& points) {
  return rule().run(micro_batches, points);
}

}  // namespace duet
