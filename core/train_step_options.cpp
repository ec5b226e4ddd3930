#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/train_step.h"

namespace duet {

void TrainStepOptions::validate() const {
  optimizer.validate();
  if (clip_grad) std::visit([](const auto& clip) { check_options(clip); }, *clip_grad);
  if (amp && *amp != at::kBFloat16 && *amp != at::kHalf) {
    throw ConfigError(c10::str("[TrainStepOptions] amp is ", *amp, ", expected BFloat16, Half or none"));
  }
  if (loss_scale) check_options(*loss_scale);
  distributed.validate();
}

}  // namespace duet
