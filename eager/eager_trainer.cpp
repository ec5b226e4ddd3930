#include "eager/eager_trainer.h"
#include <utility>
#include "core/detail/train_step.h"

namespace duet {

EagerTrainer::EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options)
    : EagerTrainer(std::move(task), options, nullptr) {}

EagerTrainer::EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, MakeExecutor make_graph)
    : BaseTrainer(std::move(task), options, Mode::kEager, std::move(make_graph)) {}

}  // namespace duet
