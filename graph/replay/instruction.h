#pragma once

#include "graph/kernels/bitexact_kernel.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <vector>

namespace duet {

// One op of a CpuProgram, ready to run.
struct Instruction {
  enum class Kind {
    kInPlace,  // changes its arguments
    kOut,      // writes its results into given memory
    kRebind,   // runs as it is; its results take the place of the recorded memory
  };
  struct Rebind {
    int result;   // position among the op's results, lists flattened
    int storage;
    int value;    // what it was when it was recorded
  };

  Kind kind;
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::vector<Rebind> rebinds;
  bool grad_mode;
  std::vector<int> releases;               // storages whose memory nobody reads from here on
  std::size_t source;                      // index of the op in the recording
  std::unique_ptr<BitexactKernel> kernel;  // runs in place of the op if it may
};

}  // namespace duet
