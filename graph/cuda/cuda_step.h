#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>
#include <c10/util/Exception.h>
#include "base/detail/text.h"
#include "graph/cuda/capture_backend.h"
#include "graph/detail/captured_step.h"

namespace duet {

// A captured step as device graphs, one per segment. The step that is recorded is a real one; the graphs are captured
// before the first replay, which writes down the same code without running it.
class CudaStep : public CapturedStep {
 public:
  CudaStep(const MicroBatches& example, std::unique_ptr<CaptureBackend> backend)
      : CapturedStep(example), backend_(std::move(backend)) {}

  bool prepare(StepCode& step, StepObserver& observer) override {
    if (prepared_) return true;
    bool short_of_memory = false;
    bool captured = capture(step, observer, short_of_memory);
    if (short_of_memory && backend_->free_memory()) captured = capture(step, observer, short_of_memory);
    if (!captured) return false;
    failure_.clear();
    for (const auto& parameter : step.parameters()) gradients_.push_back(parameter.second.grad());
    prepared_ = true;
    return true;
  }

  int64_t bytes() const override { return inputs_.bytes() + backend_->bytes(); }
  std::string text(const NamedTensors& /*names*/) const override {
    return std::to_string(segments()) + " device graph(s) of " + std::to_string(op_count_) + " ops in all\n";
  }
  StepExplanation::Ops ops() const override {
    const auto count = static_cast<int64_t>(op_count_);
    return {count, count, count, {}};
  }

 private:
  // At a split point one graph ends and the next begins; hooks are not called, since nothing has run yet.
  class CapturingObserver : public StepObserver {
   public:
    CapturingObserver(StepObserver& inner, CaptureBackend& backend, const std::vector<at::Generator>& generators)
        : inner_(inner), backend_(backend), generators_(generators) {}

    void after_backward(const StepView&) override { split(); }
    void before_optimizer_step(const StepView&) override { split(); }
    void in_step(StepView& view) override { inner_.in_step(view); }
    bool wants_outputs() const override { return inner_.wants_outputs(); }

   private:
    void split() {
      if (!inner_.splits()) return;
      backend_.end();
      backend_.begin(generators_);
    }

    StepObserver& inner_;
    CaptureBackend& backend_;
    const std::vector<at::Generator>& generators_;
  };

  bool capture(StepCode& step, StepObserver& observer, bool& short_of_memory) {
    step.zero_grad();  // backward allocates gradients in the pool
    try {
      backend_->begin(generators());
      CapturingObserver capturing(observer, *backend_, generators());
      output_ = step.run(inputs_.micro_batches(), capturing);
      backend_->end();
      return true;
    } catch (const std::exception& error) {
      short_of_memory = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
      failure_ = "the device refused the capture (" + first_line(error) + ")";
    }
    step.zero_grad();
    output_ = {};  // memory of the pool
    backend_->abort();
    return false;
  }

  void compile(const std::shared_ptr<const StepProgram>& recording, StepCode&, const StepResult&) override {
    op_count_ = recording->ops.size();
    if (recording->keeps_tensors()) {
      failure_ = "somebody keeps a tensor of the step, whose memory a device graph uses again";
    } else if (recording->reads_changing_tensors()) {
      failure_ =
          "a tensor from outside the step is another one at each step, and a device graph has one address for it";
    }
  }
  c10::Storage memory_of(int /*storage*/) const override { return {}; }  // nothing is kept
  void run_segment(std::size_t segment) override { backend_->replay(segment); }

  std::unique_ptr<CaptureBackend> backend_;
  std::size_t op_count_ = 0;
  bool prepared_ = false;
};

}  // namespace duet
