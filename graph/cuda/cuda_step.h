#pragma once

#include <memory>
#include <string>
#include "graph/cuda/capture_backend.h"
#include "graph/detail/captured_step.h"

namespace duet {

// A captured step as device graphs, one per segment. The step that is recorded is a real one; the graphs are captured
// before the first replay, which writes down the same code without running it.
class CudaStep : public CapturedStep {
 public:
  CudaStep(const MicroBatches& example, std::unique_ptr<CaptureBackend> backend)
      : CapturedStep(example), backend_(std::move(backend)) {}

  bool prepare(TrainStep& step, StepObserver& observer) override;
  int64_t bytes() const override { return inputs_.bytes() + backend_->bytes(); }
  std::string text(const NamedTensors& names) const override;

 private:
  class CapturingObserver;

  void compile(const StepProgram& recording, TrainStep&, const StepResult&) override {
    op_count_ = recording.ops.size();
  }
  void run_segment(std::size_t segment) override { backend_->replay(segment); }

  std::unique_ptr<CaptureBackend> backend_;
  std::size_t op_count_ = 0;
  bool prepared_ = false;
};

}  // namespace duet
