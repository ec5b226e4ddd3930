#pragma once

#include <duet/graph/captured_step.h>
#include <duet/graph/cuda/capture_backend.h>

#include <memory>
#include <string>

namespace duet {

// A captured step as device graphs, one per segment. The update that a recorder watches is a real one; the graphs are
// captured before the first replay, which writes down the same code without running it.
class CudaStep : public CapturedStep {
 public:
  CudaStep(const Window& example, std::unique_ptr<CaptureBackend> backend)
      : CapturedStep(example), backend_(std::move(backend)) {}

  bool capture(UpdateRule& rule, const Window& window, UpdatePoints& points, bool strict, UpdateOutput& output) override;
  bool prepare(UpdateRule& rule, UpdatePoints& points) override;
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
