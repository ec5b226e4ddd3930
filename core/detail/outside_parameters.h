#pragma once

#include <cstdint>
#include <unordered_set>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include "base/batch.h"

namespace duet {

// Parameters that a loss gives gradients to though its trainer does not train them: others of its task, and those of
// another network that the loss calls.
class OutsideParameters {
 public:
  // `own`: what is trained; `others`: of the task.
  OutsideParameters(const NamedTensors& own, const NamedTensors& others);

  // Looks at the first two losses: what both reach outlives a step. Warns once of those that are not the task's, whose
  // gradients nobody may clear; where somebody does, the step is never the same.
  void look_for(const at::Tensor& loss);
  // The backward pass, after which they have the gradients that they had before.
  void backward_past(const at::Tensor& loss) const;

 private:
  std::vector<at::Tensor> leaves_outside(const at::Tensor& loss) const;

  std::unordered_set<const c10::TensorImpl*> own_;
  std::vector<at::Tensor> others_;
  int64_t looks_ = 0;
  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl>> reached_;  // by the first
};

}  // namespace duet
