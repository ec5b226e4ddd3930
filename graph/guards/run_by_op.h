#pragma once

#include <memory>
#include <string>
#include <vector>
#include "graph/record/step_program.h"

namespace duet {

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
