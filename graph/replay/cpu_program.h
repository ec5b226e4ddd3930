#pragma once

#include <string>
#include <vector>
#include <ATen/core/stack.h>
#include "base/batch.h"
#include "graph/graph_options.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/record/step_program.h"

namespace duet {

// One op of a CpuProgram, ready to run.
struct Instruction {
  enum class Kind {
    kInPlace,  // changes its arguments
    kOut,      // writes its results into given memory
    kRebind,   // runs as it is; its results take the place of the recorded memory
    kCopy,     // its kernel writes into given memory; where the op runs, its results are copied there
  };
  struct Rebind {  // also of kCopy
    int result;    // position among the op's results, lists flattened
    int storage;
    int value;  // what it was when it was recorded
  };

  Kind kind;
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::vector<Rebind> rebinds;
  bool grad_mode;
  std::vector<int> releases;  // storages whose memory nobody reads from here on
  std::size_t source;         // index of the op in the recording
  BitexactKernel kernel;      // runs in place of the op if it may
};

// What compile_program() makes out of a recording.
struct CpuProgramParts {
  StepProgram recording;  // its constants are what the program reads
  std::vector<c10::Storage> storages;
  std::vector<at::Tensor> tensors;  // by value
  std::vector<Instruction> instructions;
  std::vector<std::size_t> segment_ends;  // indices into instructions
  c10::DataPtr arena;
  int64_t bytes = 0;
  KernelSettings settings;  // under which the bit-exact kernels were chosen
};

// A StepProgram compiled for the CPU: the same kernels in the same order on planned memory, without autograd, dispatch
// to it, views and allocation. Views are tensors made once; ops whose results nobody reads are left out. With
// Fuse::kExact, duet's own kernels take the place of some (bitexact_kernel.h).
class CpuProgram {
 public:
  explicit CpuProgram(CpuProgramParts parts) : parts_(std::move(parts)) {}

  // Host code that the step contains runs between segments: segments() is one more than its split points.
  std::size_t segments() const { return parts_.segment_ends.size(); }
  void run(std::size_t segment);

  // The program's tensor for a tensor seen while recording; the tensor itself if the step never made it.
  at::Tensor tensor(const at::Tensor& recorded) const;

  int64_t bytes() const { return parts_.bytes; }
  std::size_t op_count() const { return parts_.instructions.size(); }
  // One line per op: results = op(arguments), how it runs.
  std::string text(const NamedTensors& names) const;

 private:
  void execute(const Instruction& instruction);
  void execute_observed(const Instruction& instruction);
  void run_op(const Instruction& instruction);
  template <class Take>
  void for_each_result(const Instruction& instruction, Take take);
  void rebind(const Instruction& instruction);
  void copy(const Instruction& instruction);

  CpuProgramParts parts_;
  bool use_kernels_ = false;  // in the current run: under other settings ATen may round differently
  torch::jit::Stack stack_;
};

// `results` must be readable after a run and keep their values until the next one (losses, gradients).
CpuProgram compile_program(const StepProgram& recording, const std::vector<at::Tensor>& results, Fuse fuse);

}  // namespace duet
