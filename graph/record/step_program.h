#pragma once

#include <vector>
#include <ATen/core/Generator.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include "graph/record/value_table.h"

namespace duet {

// Where host code may run inside a step.
enum class SplitPoint { kAfterBackward, kBeforeOptimizerStep };

// One recorded step as it ran: every leaf ATen call with the memory it read and wrote.
struct StepProgram {
  // An argument or result: a constant, one value, or a list of values (-1: none).
  struct Slot {
    enum class Kind { kConstant, kValue, kList, kOptionalList } kind = Kind::kConstant;
    c10::IValue constant;
    std::vector<int> values;
  };

  struct Op {
    c10::OperatorHandle handle;
    std::vector<Slot> arguments, results;
    std::vector<int> written;  // values changed in place
    bool random = false;
    bool grad_mode = false;  // some kernels ask for it (oneDNN's RNN keeps its workspace only for a backward)
  };

  struct Split {
    SplitPoint point;
    std::size_t op;  // host code ran before this op
  };

  ValueTable table;
  std::vector<Op> ops;
  std::vector<Split> splits;

  // What a run changes besides its own memory: the bytes of every tensor from outside that an op writes, and the
  // generators that it names.
  std::vector<at::Tensor> changed_outside() const;
  std::vector<at::Generator> generators() const;
};

// Calls visit(value) for every value in the slots.
template <class Visit>
void for_each_value(const std::vector<StepProgram::Slot>& slots, Visit visit) {
  for (const StepProgram::Slot& slot : slots) {
    for (const int value : slot.values) {
      if (value >= 0) visit(value);
    }
  }
}

}  // namespace duet
