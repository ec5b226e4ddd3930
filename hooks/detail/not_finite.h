#pragma once

#include <cstdint>
#include <string>
#include <vector>
#include <ATen/core/Tensor.h>
#include "base/state_dict.h"
#include "core/train_context.h"

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

// Runs a step that was not finite again, from the state before it, and says where its numbers stopped being finite.
class NonFiniteTrace {
 public:
  // Before each step: its batches, the state of the default generators, buffers, and weights if the step may spoil
  // them.
  void remember(const TrainContext& context, bool copies_weights);
  bool remembers() const { return !micro_batches_.batches.empty(); }

  // Empty if every number of the step is finite (a loss scale that was too high). Writes the op's tensors and the batch
  // to <work_dir>/non_finite/step-<number>.safetensors, if there is a work dir. State and generators are afterwards
  // what they were.
  std::string text(const TrainContext& context) const;

 private:
  MicroBatches micro_batches_;
  int64_t step_ = 0;   // finished ones before it
  StateDict tensors_;  // copies, by name
  StateDict random_;
};

}  // namespace duet
