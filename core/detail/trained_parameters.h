#pragma once

#include <cstdint>
#include <string>
#include <unordered_set>
#include <vector>
#include <ATen/core/Tensor.h>
#include <c10/util/intrusive_ptr.h>
#include "base/batch.h"
#include "optim/groups/param_group.h"

// Which of the parameters that a loss reaches a trainer trains.
namespace duet {

class Task;

// What TrainerOptions::freeze says. Throws ConfigError for a pattern that fits no module and no parameter.
void freeze(Task& task, const std::vector<std::string>& patterns);

// Takes from `parameters`, those that require a gradient, the ones that no group holds. Throws ConfigError for a group
// that holds something else, and unless it is `allowed` for a parameter in no group.
void leave_out_untrained(const ParamGroups& groups, bool allowed, NamedTensors& parameters);

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
