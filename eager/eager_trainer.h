#pragma once

#include <memory>
#include "../core/trainer.h"

namespace duet {

// Runs each step op by op: what you debug with.
class EagerTrainer : public BaseTrainer {
 public:
  explicit EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {});

 protected:
  // May change to the graph mode that `make_graph` makes.
  EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, MakeExecutor make_graph);
};

}  // namespace duet
