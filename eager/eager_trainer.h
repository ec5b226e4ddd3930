#pragma once

#include <memory>
#include <utility>
#include "../core/trainer.h"

namespace duet {

// Runs each step op by op: what you debug with.
class EagerTrainer : public BaseTrainer {
 public:
  // With `make_graph`, as make_trainer() gives it, it may change to graph mode.
  explicit EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {},
                        MakeExecutor make_graph = nullptr)
      : BaseTrainer(std::move(task), options, Mode::kEager, std::move(make_graph)) {}
};

}  // namespace duet
