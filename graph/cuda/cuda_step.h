#pragma once

#include "graph/detail/captured_step.h"
#include "graph/cuda/capture_backend.h"

#include <memory>
#include <string>

namespace duet {

// A captured step as device graphs, one per segment. The step that a recorder watches is a real one; the graphs are
// captured before the first replay, which writes down the same code without running it.
class CudaStep : public CapturedStep {
 public:
  CudaStep(const MicroBatches& example, std::unique_ptr<CaptureBackend> backend)
      : CapturedStep(example), backend_(std::move(backend)) {}

  bool capture(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points, bool strict, StepResult& output) override;
  bool prepare(TrainStep& rule, StepObserver& points) override;
  int64_t bytes() const override { return inputs_.bytes() + backend_->bytes(); }
  std::string text(const NamedTensors& names) const override;

 private:
  class CapturingPoints;

  void run_segment(std::size_t segment) override { backend_->replay(segment); }

  std::unique_ptr<CaptureBackend> backend_;
  std::size_t op_count_ = 0;
  bool prepared_ = false;
};

}  // namespace duet
