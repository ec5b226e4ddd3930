#pragma once

#include <memory>
#include "../core/trainer.h"

namespace duet {

// Runs each step op by op: what you debug with.
class EagerTrainer : public BaseTrainer {
 public:
  explicit EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {});
};

}  // namespace duet
