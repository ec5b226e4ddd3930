#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/train_step.h"

#include <cmath>

namespace duet {

void TrainStepOptions::validate() const {
  optimizer.validate();
  if (clip_grad && !(clip_grad->max_norm > 0 && std::isfinite(clip_grad->max_norm))) {
    throw ConfigError(c10::str("[ClipGradOptions] max_norm is ", clip_grad->max_norm, ", expected a number > 0"));
  }
  if (clip_grad && !(clip_grad->norm_type >= 1)) {
    throw ConfigError(c10::str("[ClipGradOptions] norm_type is ", clip_grad->norm_type, ", expected a number >= 1 or inf"));
  }
  if (clip_grad && clip_grad->clip_value && !(*clip_grad->clip_value > 0 && std::isfinite(*clip_grad->clip_value))) {
    throw ConfigError(c10::str("[ClipGradOptions] clip_value is ", *clip_grad->clip_value, ", expected a number > 0"));
  }
  if (amp && *amp != at::kBFloat16 && *amp != at::kHalf) {
    throw ConfigError(c10::str("[TrainStepOptions] amp is ", *amp, ", expected BFloat16, Half or none"));
  }
  if (loss_scale) loss_scale->validate();
  distributed.validate();
}

}  // namespace duet
