#pragma once

#include <duet/core/trainer.h>
#include <duet/optim/trainer_options.h>

#include <memory>

namespace duet {

// Runs each update op by op: what you debug with.
class EagerTrainer : public BaseTrainer {
 public:
  explicit EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options = {});

 private:
  EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, at::Device device);
  UpdateOutput run_update(const Window& window, UpdatePoints& points) override;
};

}  // namespace duet
