#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/stack.h>
#include "core/train_context.h"
#include "graph/detail/static_inputs.h"
#include "graph/record/step_program.h"

namespace duet {

class CpuProgram;

// What the host code of a recorded step reads back (StepProgram::reads): does it read the same in the next one? Runs
// the ops that compute it, on inputs of its own and on what lies outside the step, which they do not change.
class ReadGuard {
 public:
  // `inputs`: those over which the recording lies.
  ReadGuard(const StepProgram& recording, const MicroBatches& inputs);
  ~ReadGuard();
  ReadGuard(const ReadGuard&) = delete;
  ReadGuard& operator=(const ReadGuard&) = delete;

  // Whether every value is the recorded one, bit by bit, in a step on `micro_batches` that is about to run.
  bool holds(const MicroBatches& micro_batches);
  // Likewise for one, in the middle of the host code; those before it were asked for before it.
  bool holds(std::size_t read, const MicroBatches& micro_batches);

  std::size_t size() const { return reads_.size(); }
  // The recorded ones: "true, 5".
  std::string values() const;
  // The read whose value was another one at last: op and place in the model.
  std::string changed() const;
  int64_t bytes() const;

 private:
  struct Read {
    c10::OperatorHandle op;
    torch::jit::Stack arguments;
    c10::IValue recorded;
    std::string place;  // the parameter that was read last
  };
  // Of the micro-batches: the tensors that the program reads.
  MicroBatches part_of(const MicroBatches& micro_batches) const;
  bool run(std::size_t read);

  std::vector<std::pair<std::size_t, std::size_t>> used_;  // of the inputs: batch and tensor
  std::unique_ptr<StaticInputs> inputs_;
  std::unique_ptr<CpuProgram> program_;
  std::vector<Read> reads_;
  std::size_t changed_ = 0;
};

}  // namespace duet
