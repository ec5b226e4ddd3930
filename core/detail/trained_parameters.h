#pragma once

#include <string>
#include <unordered_set>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/batch.h"
#include "optim/groups/param_group.h"

// Which of the parameters that a loss reaches a trainer trains.
namespace duet {

class Task;

// What TrainerOptions::freeze says. Throws ConfigError for a pattern that fits no module and no parameter.
void freeze(Task& task, const std::vector<std::string>& patterns);

// Throws ConfigError if a parameter and a buffer have one name, which LibTorch allows.
void check_names(const Task& task);

// Takes from `parameters`, those that require a gradient, the ones that no group holds. Throws ConfigError for a group
// that holds something else, and unless it is `allowed` for a parameter in no group.
void leave_out_untrained(const ParamGroups& groups, bool allowed, NamedTensors& parameters);

// For a trainer that leaves parameters of its task, and other networks that the loss calls, to somebody else.
class OutsideParameters {
 public:
  // `own`: what is trained; `others`: of the task.
  OutsideParameters(const NamedTensors& own, const NamedTensors& others);
  // The backward pass, after which all but the trained ones have the gradients that they had before.
  void backward_past(const at::Tensor& loss) const;

 private:
  std::unordered_set<const c10::TensorImpl*> own_;
  std::vector<at::Tensor> others_;
};

}  // namespace duet
