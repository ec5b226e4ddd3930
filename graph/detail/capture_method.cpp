#include "graph/detail/capture_method.h"
#include "graph/cuda/cuda_step.h"
#include "graph/record/program_bytes.h"
#include "graph/replay/cpu_program.h"

namespace duet {

namespace {

// A captured step as a CpuProgram, replayed kernel by kernel.
class CpuStep : public CapturedStep {
 public:
  CpuStep(const MicroBatches& example, const KernelPasses& passes) : CapturedStep(example), passes_(passes) {}

  int64_t bytes() const override {
    return inputs_.bytes() + (program_ ? program_->bytes() : 0) + (reads_ ? reads_->bytes() : 0) + heap_bytes_;
  }
  std::string text(const NamedTensors& names) const override {
    if (!program_) return {};
    NamedTensors all = names;
    for (const Batch& batch : inputs_.micro_batches().batches) {
      for (const auto& item : batch.items()) all.push_back(item);
    }
    for (auto& item : output_.all()) all.push_back(std::move(item));
    return program_->text(all);
  }
  CpuProgram* cpu_program() override { return program_.get(); }
  StepExplanation::Ops ops() const override { return program_ ? program_->ops() : StepExplanation::Ops(); }

 private:
  void compile(const std::shared_ptr<const StepProgram>& recording, StepCode& step,
               const StepResult& recorded) override {
    heap_bytes_ = heap_bytes_of(*recording);
    program_ =
        std::make_unique<CpuProgram>(compile_program(recording, results_of(recorded, step.parameters()), passes_));

    output_ = mapped(recorded, [this](const at::Tensor& tensor) { return program_->tensor(tensor); });
    for (const auto& parameter : step.parameters()) {
      const at::Tensor& gradient = parameter.second.grad();
      gradients_.push_back(gradient.defined() ? program_->tensor(gradient) : gradient);
    }
  }

  void run_segment(std::size_t segment) override { program_->run(segment); }
  bool guards_reads() const override { return true; }
  c10::Storage memory_of(int storage) const override { return program_->memory(storage); }
  void move_tensors(const c10::StorageImpl* from, const c10::Storage& to) override { program_->move_tensors(from, to); }

  KernelPasses passes_;
  int64_t heap_bytes_ = 0;
  std::unique_ptr<CpuProgram> program_;
};

}  // namespace

CaptureMethod cpu_capture_method(const KernelPasses& passes) {
  return {1, [passes](const MicroBatches& example) { return std::make_unique<CpuStep>(example, passes); }, nullptr};
}

CaptureMethod capture_method_for(at::Device device, Fuse fuse) {
  if (!device.is_cuda()) return cpu_capture_method(fuse == Fuse::kExact ? bitexact_passes() : KernelPasses());
  const std::shared_ptr<CaptureDevice> shared = make_cuda_capture_device(device);
  const auto make_step = [shared](const MicroBatches& example) {
    return std::make_unique<CudaStep>(example, shared->new_backend());
  };
  return {3, make_step, shared};
}

}  // namespace duet
