#pragma once

#include <cstddef>
#include <utility>
#include <vector>
#include "graph/record/step_program.h"

namespace duet {

// Runs the ops of a recording one by one.
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

}  // namespace duet
