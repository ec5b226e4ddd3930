#pragma once

#include <ATen/core/Tensor.h>
#include "core/trainer.h"

namespace duet {

// The loss over the learning rate, on a logarithmic axis whose powers of ten are named: uint8 [height, width, 3]. A red
// line stands at the steepest descent, a green one at the valley. The curve has at least 2 points.
at::Tensor lr_chart(const LrCurve& curve);

}  // namespace duet
