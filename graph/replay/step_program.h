#pragma once

#include "base/batch.h"
#include "graph/graph_options.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/kernel_settings.h"
#include "graph/record/tape.h"

#include <ATen/core/stack.h>

#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

namespace duet {

// One recorded step on the CPU, compiled for replay: the same kernels in the same order on planned memory, without autograd,
// dispatch to it, views and allocation.
//
//   out      kernels that can write into given memory do so
//   rebind   others run as they are and their result takes the place of the recorded memory
//   inplace  ops that change their arguments
//
// Views are tensors made once; ops whose results nobody reads are left out. With Fuse::kExact, duet's own kernels take the
// place of some (bitexact_kernel.h).
class StepProgram {
 public:
  // `results` must be readable after a run and keep their values until the next one (losses, gradients).
  StepProgram(const Tape& tape, const std::vector<at::Tensor>& results, Fuse fuse = Fuse::kExact);
  StepProgram(const StepProgram&) = delete;
  StepProgram& operator=(const StepProgram&) = delete;

  // Host code that the step contains runs between segments: segments() is one more than its host points.
  std::size_t segments() const { return segment_ends_.size(); }
  void run(std::size_t segment);

  // The program's tensor for a tensor seen while recording; the tensor itself if the step never made it.
  at::Tensor tensor(const at::Tensor& recorded) const;

  int64_t bytes() const { return bytes_; }
  std::size_t op_count() const { return instructions_.size(); }
  // One line per op: results = op(arguments), how it runs.
  std::string text(const NamedTensors& names) const;

 private:
  enum class Kind { kInPlace, kOut, kRebind };
  struct Rebind {
    int result;   // position among the op's results, lists flattened
    int storage;
    int value;    // what it was when it was recorded
  };
  struct Instruction {
    Kind kind;
    c10::OperatorHandle op;
    std::vector<c10::IValue> arguments;
    std::vector<Rebind> rebinds;
    bool grad_mode;
    std::vector<int> releases;  // storages whose memory nobody reads any more
    std::size_t source;         // index on the tape
    std::unique_ptr<BitexactKernel> exact;  // runs in place of the op if it may
  };

  void mark_needed();
  bool is_view(std::size_t op) const;
  void classify();
  void make_memory(const std::unordered_set<int>& persistent);
  void make_tensors();
  void compile(std::size_t op);
  void plan_releases(const std::unordered_set<int>& persistent);
  void find_bitexact_kernels();
  c10::IValue argument_of(const Tape::Slot& slot) const;
  void execute(const Instruction& instruction);
  void execute_observed(const Instruction& instruction);
  void run_op(const Instruction& instruction);
  void rebind(const Instruction& instruction);

  Tape tape_;  // the recording; its constants are what the program reads
  std::vector<bool> needed_;
  std::vector<Kind> kinds_;
  std::vector<std::pair<std::size_t, std::size_t>> use_;  // per storage: first and last op that touches it
  std::unordered_set<int> persistent_;
  std::vector<c10::Storage> storages_;
  std::vector<at::Tensor> tensors_;
  std::vector<Instruction> instructions_;
  std::vector<std::size_t> segment_ends_;  // indices into instructions_
  c10::DataPtr arena_;
  int64_t bytes_ = 0;
  KernelSettings settings_;  // under which the exact kernels were chosen
  bool use_exact_ = false;   // in the current run: under other settings ATen may round otherwise
  torch::jit::Stack stack_;
};

}  // namespace duet
