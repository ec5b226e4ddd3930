#include "base/device.h"
#include "core/trainer_options.h"

namespace duet {

void TrainerOptions::validate() const {
  step().validate();
  check_options(loop);
}

}  // namespace duet
