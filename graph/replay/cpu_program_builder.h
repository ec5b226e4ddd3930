#pragma once

#include <unordered_set>
#include <vector>
#include "graph/graph_options.h"
#include "graph/replay/cpu_program.h"

namespace duet {

// How a recording becomes a CpuProgram: what is needed, how each op runs, where its memory lies.
class CpuProgramBuilder {
 public:
  // `results` must be readable after a run and keep their values until the next one (losses, gradients).
  CpuProgramBuilder(const StepProgram& recording, const std::vector<at::Tensor>& results);

  CpuProgram build(Fuse fuse);

 private:
  void mark_needed();
  bool is_view(std::size_t op) const;
  bool allocates_only(std::size_t op) const;
  bool outlives_run(std::size_t storage) const { return persistent_.count(static_cast<int>(storage)) != 0; }
  void choose_kinds();
  Instruction::Kind kind_of(std::size_t op) const;
  void find_lifetimes();
  void make_storages();
  void make_tensors();
  void compile_all();
  void compile(std::size_t op);
  std::vector<Instruction::Rebind> rebinds_of(std::size_t op) const;
  c10::IValue argument_of(const StepProgram::Slot& slot) const;
  void plan_releases();
  void find_kernels();

  CpuProgramParts parts_;
  const std::vector<StepProgram::Op>& ops_ = parts_.recording.ops;
  const ValueTable& table_ = parts_.recording.table;
  std::unordered_set<int> persistent_;                    // storages of the results
  std::vector<bool> needed_;                              // by op
  std::vector<Instruction::Kind> kinds_;                  // by op
  std::vector<std::pair<std::size_t, std::size_t>> use_;  // by storage: first and last op that touches it
};

}  // namespace duet
