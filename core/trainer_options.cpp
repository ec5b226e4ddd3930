#include "base/device.h"
#include "core/trainer_options.h"

namespace duet {

void TrainerOptions::validate() const {
  step().validate();
  loop.validate();
}

at::Device TrainerOptions::resolved_device() const {
  const Communicator& ranks = *distributed.communicator;
  const bool left_open = device == "auto" || (device == "cuda" && ranks.device().is_cuda());
  return left_open && !ranks.is_alone() ? ranks.device() : parse_device(device);
}

}  // namespace duet
