#pragma once

#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/state_dict.h"

namespace duet {

class Task;

// A tensor whose numbers are looked at.
struct WatchedTensor {
  const char* kind;  // "weight"
  std::string name;
  at::Tensor tensor;
  // An infinity may be meant, as in the mask of an attention: NaN alone is bad.
  bool may_be_infinite = false;
  bool of_this_rank = false;  // other ranks may hold other numbers
};

// The weights that are trained (a frozen one may be a mask), and the buffers.
std::vector<WatchedTensor> watched_weights(const Task& task);
// With them the state of the optimizer and the averages of hooks, of a trainer's state.
std::vector<WatchedTensor> watched_state(const Task& task, const StateDict& state);

// Those that are not finite. Each device is read from once.
std::vector<WatchedTensor> not_finite(const std::vector<WatchedTensor>& watched);
// "the weight 'a', 3 buffers from 'b' on"; empty for none.
std::string names_of(const std::vector<WatchedTensor>& found);

}  // namespace duet
