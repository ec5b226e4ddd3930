#pragma once

#include <cstdint>
#include <string>
#include "base/state_dict.h"
#include "core/train_context.h"

namespace duet {

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
