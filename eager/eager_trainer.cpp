#include <duet/core/device.h>
#include <duet/eager/eager_trainer.h>

namespace duet {

EagerTrainer::EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options)
    : EagerTrainer(std::move(task), options, (options.validate(), parse_device(options.device))) {}

EagerTrainer::EagerTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, at::Device device)
    : BaseTrainer("eager", std::make_unique<Update>(std::move(task), device, options.update()), device, options.loop) {}

UpdateOutput EagerTrainer::run_update(const Window& window, UpdatePoints& points) {
  return rule().run(window, points);
}

}  // namespace duet
