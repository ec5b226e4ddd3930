#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>
#include "core/task.h"

namespace duet::benchmarks {

// A model and one batch for it, made anew and alike at every call after the same seed.
struct Case {
  std::string name;  // benchmarks/peers/models.py has the same model under the same name
  std::function<std::unique_ptr<Task>()> task;
  std::function<Batch()> batch;
  int64_t steps;            // per repetition: the same for all contestants, so that all see the same weights
  bool is_forward = false;  // the forward pass alone, without gradients: Task::predict
};

std::vector<Case> cases();

}  // namespace duet::benchmarks
