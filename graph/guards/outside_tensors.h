#pragma once

#include <cstddef>
#include <vector>
#include "graph/record/address_watch.h"
#include "graph/record/step_program.h"

namespace duet {

// The tensors from outside that a recorded step reads, weights and state left out: those of hooks, tasks and modules of
// which the trainer does not know.
class OutsideTensors {
 public:
  OutsideTensors() = default;
  // `known`: weights and state.
  OutsideTensors(const StepProgram& recording, const NamedTensors& known);

  // Whether somebody let go of one since the last call, or gave it other memory: the user's code may have another one
  // now.
  bool lost_references();
  // Has the watch notice who takes the address of one.
  void guard(AddressWatch& addresses) const;

 private:
  struct Watched {
    at::Tensor tensor;
    const void* storage;
    std::size_t references = 0;
  };
  std::vector<Watched> tensors_;
};

}  // namespace duet
