#pragma once

#include "core/detail/train_step.h"

namespace duet {

// Inputs of a captured step: tensors with fixed addresses, laid out as the micro-batches it was made from.
class StaticInputs {
 public:
  explicit StaticInputs(const MicroBatches& example);

  // Copies the values of `micro_batches` in; it has the layout of the example (same key).
  void fill(const MicroBatches& micro_batches);
  // The other way: what a step that runs only this once did to its batch.
  void copy_to(const MicroBatches& micro_batches) const;
  const MicroBatches& micro_batches() const { return micro_batches_; }
  int64_t bytes() const;

 private:
  MicroBatches micro_batches_;
};

}  // namespace duet
