#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include "graph/record/step_program.h"

// The ops of a recording: as host code knows them, run without it one by one, and compared from run to run.

namespace duet {

// What the host code called: a replay may run something else for it.
inline const c10::OperatorHandle& called(const StepProgram::Op& op) {
  return op.recorded_as ? op.recorded_as->handle : op.handle;
}
inline const std::vector<StepProgram::Slot>& given(const StepProgram::Op& op) {
  return op.recorded_as ? op.recorded_as->arguments : op.arguments;
}

// Whether it computes 0-dim tensors on the host from such alone, and changes nothing.
bool is_of_single_numbers(const StepProgram::Op& op, const ValueTable& table);

// The argument that the result is, by the schema; -1 if none.
int argument_returned(const c10::FunctionSchema& schema, std::size_t result);

// Bits for floating point, so that NaN equals NaN and -0 does not equal 0.
bool same_number(const c10::IValue& recorded, const c10::IValue& now);

// Whether the numbers that a call has given are the recorded ones.
bool same_results(const StepProgram::Op& recorded, const torch::jit::Stack& stack);

class RecordedOps {
 public:
  // `memory`: by storage, what each is to lie in; shadows among them are filled. `recording` is lent.
  RecordedOps(const StepProgram& recording, std::vector<c10::Storage> memory)
      : recording_(recording), memory_(std::move(memory)) {}

  // Those before it have run.
  void run(std::size_t index) const;
  const c10::Storage& memory(int storage) const { return memory_[storage]; }

 private:
  bool is_done(std::size_t index) const;
  c10::StorageImpl* memory_of(int value) const;
  c10::DispatchKey key_of(const StepProgram::Op& op) const;
  at::Tensor tensor(int value) const;
  void take_results(std::size_t index, const StepProgram::Slot& slot, const c10::IValue& result) const;

  const StepProgram& recording_;
  std::vector<c10::Storage> memory_;
};

// By op of a recording, a hash of the tensors that it made or changed.
using OpHashes = std::vector<std::string>;

// Runs a recorded step op by op, without its host code, on the live state, which changes: up to the first split point.
OpHashes run_by_op(const std::shared_ptr<const StepProgram>& recording);

// The ops of a recording that gave other bits in one of several runs from one state, and what follows from them.
class UnstableOps {
 public:
  UnstableOps(std::shared_ptr<const StepProgram> recording, const std::vector<OpHashes>& runs);

  // The first one and its place in the model; empty if there is none.
  const std::string& first() const { return first_; }
  // Whether it may get other bits from run to run: a tensor from outside; one of StepProgram::results.
  bool reach(const at::Tensor& tensor) const;
  bool reach_result(std::size_t index) const;
  // Likewise what the step gives to other ranks.
  bool reach_other_ranks() const { return reach_other_ranks_; }

 private:
  std::shared_ptr<const StepProgram> recording_;
  std::vector<bool> storages_;
  std::string first_;
  bool reach_other_ranks_ = false;
};

}  // namespace duet
