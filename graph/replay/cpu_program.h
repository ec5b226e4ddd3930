#pragma once

#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/stack.h>
#include "base/batch.h"
#include "core/trainer.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/record/step_program.h"
#include "graph/replay/arena.h"
#include "graph/replay/segment_replay.h"
#include "graph/replay/unboxed_call.h"

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
  ThreadSettings settings;
  std::vector<int> releases;      // storages whose memory nobody reads from here on
  std::size_t source;             // index of the op in the recording
  BitexactKernel kernel;          // runs in place of the op if it may
  int64_t kernel_number = 0;      // of CpuProgram::kernel_count
  UnboxedCall unboxed = nullptr;  // how the op is called; null: with a stack
};

// What CpuProgram::build() makes out of a recording.
struct CpuProgramParts {
  KernelPasses passes;
  std::shared_ptr<Arena> arena;
  std::shared_ptr<const StepProgram> recording;  // its constants are what the program reads; null before build()
  std::vector<bool> persistent;                  // by storage: what lies there after a run is read
  std::vector<c10::Storage> storages;
  std::vector<at::Tensor> tensors;  // by value
  std::vector<Instruction> instructions;
  std::vector<std::size_t> segment_ends;  // indices into instructions
  std::unique_ptr<Arena::Share> share;
  int64_t bytes = 0;       // of memory that outlives a run
  int64_t heap_bytes = 0;  // of the recording and all this
  int64_t needed_ops = 0;  // of the recording
  int64_t kernel_count = 0;
  bool untried = false;     // there are kernels that were not tried
  KernelSettings settings;  // under which the bit-exact kernels were chosen
};

// A StepProgram compiled for the CPU: the same kernels in the same order on planned memory, without autograd, dispatch
// to it, views and allocation. Views are tensors made once; ops whose results nobody reads are left out. duet's own
// kernels may take the place of some (bitexact_kernel.h).
class CpuProgram : public SegmentReplay {
 public:
  // `passes` find duet's own kernels: those that this process has tried. Of the programs that share an arena one runs
  // at a time.
  explicit CpuProgram(KernelPasses passes = {}, std::shared_ptr<Arena> arena = std::make_shared<Arena>())
      : parts_{std::move(passes), std::move(arena)} {}

  // Once, before all else. `results` must be readable after a run and keep their values until the next one (losses,
  // gradients), as what Storage::kept marks is.
  void build(std::shared_ptr<const StepProgram> recording, const std::vector<at::Tensor>& results);
  ReplayTensors compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& recorded,
                        const NamedTensors& parameters) override;

  void run(std::size_t segment) override;
  // The program's tensor for a tensor seen while recording; the tensor itself if the step never made it.
  at::Tensor tensor(const at::Tensor& recorded) const;
  c10::Storage memory_of(int storage) const override { return parts_.storages[storage]; }
  void move_tensors(const c10::StorageImpl* from, const c10::Storage& to) override;
  bool guards_reads() const override { return true; }
  int64_t bytes() const override { return parts_.share ? parts_.bytes + parts_.heap_bytes + parts_.share->bytes() : 0; }

  bool has_untried_kernels() const override { return parts_.untried; }
  void try_kernels() override;
  // Between two runs: gives the arena's memory back to the system until the next one. Returns its bytes.
  std::size_t release_pages() { return parts_.share->release_pages(); }
  // duet's own kernels, counted in the order of their ops; kernels that only work together are one. Only the first
  // `count` are used from the next run on.
  int64_t kernel_count() const { return parts_.kernel_count; }
  void use_kernels(int64_t count) { kernels_in_use_ = count; }
  // Name, op and shapes of one of them, and what found it; null if it was switched off.
  std::string kernel_text(int64_t kernel) const;
  const KernelPass* kernel_pass(int64_t kernel) const;

  StepExplanation::Ops ops() const override;
  // One line per op: results = op(arguments), how it runs.
  std::string text(const NamedTensors& names) const override;
  CpuProgram* cpu_program() override { return this; }

 private:
  const Instruction* first_of_kernel(int64_t kernel) const;
  void drop_switched_off();
  void execute(const Instruction& instruction);
  void execute_observed(const Instruction& instruction);
  void run_op(const Instruction& instruction);
  template <class Take>
  void for_each_result(const Instruction& instruction, Take take);
  void rebind(const Instruction& instruction);
  void copy(const Instruction& instruction);

  CpuProgramParts parts_;
  bool use_kernels_ = false;  // in the current run: under other settings ATen may round differently
  int64_t kernels_in_use_ = std::numeric_limits<int64_t>::max();
  int64_t known_switched_off_ = passes_switched_off();
  torch::jit::Stack stack_;
};

}  // namespace duet
