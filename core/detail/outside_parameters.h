#pragma once

#include <cstdint>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include "base/batch.h"

namespace duet {

// Finds parameters that a loss gives gradients to though its task does not have them: those of another network that the
// loss calls. This trainer does not clear these gradients; where another does, the step is never the same.
class OutsideParameters {
 public:
  // Looks at the first two losses: what both reach outlives a step. Warns of it once, with the way out.
  void look_for(const at::Tensor& loss, const NamedTensors& own);

 private:
  int64_t looks_ = 0;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> reached_;  // by the first
};

}  // namespace duet
