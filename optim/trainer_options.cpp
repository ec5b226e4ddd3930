#include <duet/core/device.h>
#include <duet/optim/trainer_options.h>

namespace duet {

void TrainerOptions::validate() const {
  update().validate();
  loop.validate();
}

}  // namespace duet
