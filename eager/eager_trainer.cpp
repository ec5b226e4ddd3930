#include "eager/eager_trainer.h"
#include "core/detail/train_step.h"

namespace duet {

namespace {

class EagerExecutor : public StepExecutor {
 public:
  explicit EagerExecutor(TrainStep& step) : step_(step) {}

  const char* mode() const override { return "eager"; }
  StepPath choose(const MicroBatches&, const StepObserver&) override { return StepPath::kEager; }
  StepResult run(StepPath, const MicroBatches& micro_batches, StepObserver& observer) override {
    return step_.run(micro_batches, observer);
  }

 private:
  TrainStep& step_;
};

}  // namespace

EagerTrainer::EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options)
    : BaseTrainer(std::move(task), options,
                  [](TrainStep& step, at::Device) { return std::make_unique<EagerExecutor>(step); }) {}

}  // namespace duet
