#include "core/trainer_options.h"
#include "base/device.h"
#include "base/log.h"

namespace duet {

void TrainerOptions::validate() const {
  step().validate();
  for (const Schedule& schedule : schedules) check_schedule(schedule);
  check_options(loop);
}

at::Device TrainerOptions::resolved_device() const {
  const Communicator& ranks = *distributed.communicator;
  if (ranks.is_alone() && !current_ranks()->is_alone()) {
    log_warning(
        "[TrainerOptions] this trainer trains alone on every rank: its options were made before "
        "init_distributed(). Make them after it, or set distributed.communicator to its result");
  }
  const bool left_open = device == "auto" || (device == "cuda" && ranks.device().is_cuda());
  return left_open && !ranks.is_alone() ? ranks.device() : parse_device(device);
}

}  // namespace duet
