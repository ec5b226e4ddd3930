#include "graph/replay/cpu_replay.h"
#include "graph/record/program_bytes.h"
#include "graph/record/step_results.h"
#include "graph/replay/cpu_program.h"

namespace duet {

namespace {

class CpuReplay : public SegmentReplay {
 public:
  CpuReplay(const KernelPasses& passes, std::shared_ptr<Arena> arena) : passes_(passes), arena_(std::move(arena)) {}

  ReplayTensors compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& recorded,
                        const NamedTensors& parameters) override {
    heap_bytes_ = heap_bytes_of(*recording);
    program_ =
        std::make_unique<CpuProgram>(compile_program(recording, results_of(recorded, parameters), passes_, arena_));
    has_untried_kernels_ = program_->has_untried();
    ReplayTensors tensors{mapped(recorded, [this](const at::Tensor& tensor) { return program_->tensor(tensor); }), {}};
    for (const auto& parameter : parameters) {
      const at::Tensor& gradient = parameter.second.grad();
      tensors.gradients.push_back(gradient.defined() ? program_->tensor(gradient) : gradient);
    }
    return tensors;
  }
  void run(std::size_t segment) override { program_->run(segment); }
  void try_kernels() override {
    has_untried_kernels_ = false;
    program_->try_kernels();
  }

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

}  // namespace

std::unique_ptr<SegmentReplay> make_cpu_replay(const KernelPasses& passes, std::shared_ptr<Arena> arena) {
  return std::make_unique<CpuReplay>(passes, std::move(arena));
}

}  // namespace duet
