#pragma once

#include <functional>
#include <string>
#include <vector>
#include "core/train_context.h"
#include "graph/record/step_program.h"

namespace duet {

// Inputs of a captured step: tensors with fixed addresses, laid out and aligned as the micro-batches it was made from.
class StaticInputs {
 public:
  explicit StaticInputs(const MicroBatches& example);

  // The first tensor of the batches that has no plain memory to be copied from; empty if all have.
  static std::string first_unsupported_input(const MicroBatches& micro_batches);

  // Bytes from the last address that is a multiple of 64 to the tensor's: kernels may give other bits at another one. 0
  // for a tensor on a device.
  static int64_t misalignment(const at::Tensor& tensor);

  // Copies the values of `micro_batches` in; it has the layout of the example (same key).
  void fill(const MicroBatches& micro_batches);
  // The values of `micro_batches` for host code, in tensors with storages of their own over the same memory: what it
  // keeps of them must not be what later replays write into.
  static MicroBatches lend(const MicroBatches& micro_batches);
  // Whether they are in use, as storages of the recording: by tensor, in order; -1: not.
  void find_in(const ValueTable& table, const MicroBatches& lent);
  // From here on the recording reads the static inputs in the place of those that were lent when it was made.
  void take_place_in(ValueTable& table) const;
  // visit(storage of the recording, lent tensor) for each, in order; -1: it is not in use.
  void for_each_lent(const MicroBatches& lent, const std::function<void(int, const at::Tensor&)>& visit) const;
  // Lets go of the lent tensors. Whether somebody keeps one that is not in use.
  bool let_go(MicroBatches& lent) const;
  const MicroBatches& micro_batches() const { return micro_batches_; }
  int64_t bytes() const;

 private:
  MicroBatches micro_batches_;
  std::vector<int> storages_;
};

}  // namespace duet
