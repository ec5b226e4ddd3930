#pragma once

#include <memory>
#include <string>
#include <utility>
#include "graph/record/step_results.h"
#include "graph/replay/cpu_program.h"
#include "graph/replay/segment_replay.h"

namespace duet {

// A recorded step as a CpuProgram, replayed kernel by kernel.
class CpuReplay : public SegmentReplay {
 public:
  CpuReplay(const KernelPasses& passes, std::shared_ptr<Arena> arena) : passes_(passes), arena_(std::move(arena)) {}

  ReplayTensors compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& recorded,
                        const NamedTensors& parameters) override {
    heap_bytes_ = heap_bytes_of(*recording);
    program_ =
        std::make_unique<CpuProgram>(compile_program(recording, results_of(recorded, parameters), passes_, arena_));
    ReplayTensors tensors{mapped(recorded, [this](const at::Tensor& tensor) { return program_->tensor(tensor); }), {}};
    for (const auto& parameter : parameters) {
      const at::Tensor& gradient = parameter.second.grad();
      tensors.gradients.push_back(gradient.defined() ? program_->tensor(gradient) : gradient);
    }
    return tensors;
  }
  void run(std::size_t segment) override { program_->run(segment); }
  bool has_untried_kernels() const override { return program_ && program_->has_untried(); }
  void try_kernels() override { program_->try_kernels(); }

  c10::Storage memory_of(int storage) const override { return program_->memory(storage); }
  void move_tensors(const c10::StorageImpl* from, const c10::Storage& to) override { program_->move_tensors(from, to); }
  bool guards_reads() const override { return true; }

  int64_t bytes() const override { return (program_ ? program_->bytes() : 0) + heap_bytes_; }
  std::string text(const NamedTensors& names) const override {
    return program_ ? program_->text(names) : std::string();
  }
  StepExplanation::Ops ops() const override { return program_ ? program_->ops() : StepExplanation::Ops(); }
  CpuProgram* cpu_program() override { return program_.get(); }

 private:
  KernelPasses passes_;
  std::shared_ptr<Arena> arena_;
  int64_t heap_bytes_ = 0;
  std::unique_ptr<CpuProgram> program_;
};

}  // namespace duet
