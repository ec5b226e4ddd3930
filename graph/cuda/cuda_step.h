#pragma once

#include <exception>
#include <memory>
#include <string>
#include <vector>
#include <c10/util/Exception.h>
#include "base/detail/op_rules.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "graph/cuda/capture_backend.h"
#include "graph/detail/captured_step.h"

namespace duet {

// A captured step as device graphs, one per segment. The step that is recorded is a real one; the one after it is
// captured, which writes down its work instead of doing it, and is then the first that is replayed.
class CudaStep : public CapturedStep {
 public:
  CudaStep(const MicroBatches& example, std::unique_ptr<CaptureBackend> backend)
      : CapturedStep(example), backend_(std::move(backend)) {}

  bool is_ready() const override { return is_captured_; }
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
  class CapturingObserver : public ForwardingObserver {
   public:
    CapturingObserver(StepObserver& inner, CaptureBackend& backend, const std::vector<at::Generator>& generators)
        : ForwardingObserver(inner), backend_(backend), generators_(generators) {}

    std::size_t graphs() const { return graphs_; }

   private:
    void at_split(SplitPoint, const StepView&, const std::function<void()>&) override {
      backend_.end();
      backend_.begin(generators_);
      ++graphs_;
    }

    CaptureBackend& backend_;
    const std::vector<at::Generator>& generators_;
    std::size_t graphs_ = 1;
  };

  bool capture(StepCode& step, StepObserver& observer) override {
    bool short_of_memory = false;
    is_captured_ = try_capture(step, observer, short_of_memory);
    if (short_of_memory && backend_->free_memory()) is_captured_ = try_capture(step, observer, short_of_memory);
    return is_captured_;
  }

  // The allocator is, or the driver, which takes memory for a graph beside it.
  static bool is_short_of_memory(const std::exception& error) {
    constexpr int32_t kCudaErrorMemoryAllocation = 2;
    const auto* of_device = dynamic_cast<const c10::AcceleratorError*>(&error);
    return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
           (of_device != nullptr && of_device->get_error_code() == kCudaErrorMemoryAllocation);
  }

  bool try_capture(StepCode& step, StepObserver& observer, bool& short_of_memory) {
    step.zero_grad();  // backward allocates gradients in the pool
    std::string op;    // that runs
    try {
      backend_->begin(generators());
      CapturingObserver capturing(observer, *backend_, generators());
      output_ = follow_host_code(step, capturing, [&](const auto& handle, auto& stack, const auto& run) {
        op = full_name(handle);
        backend_->run_op(handle, stack, run);
        op.clear();
      });
      backend_->end();
      require<GraphError>(capturing.graphs() == segments(), "hooks act at other places than when it was recorded");
      return true;
    } catch (const std::exception& error) {
      short_of_memory = is_short_of_memory(error);
      failure_ = "the device refused the capture " + (op.empty() ? "" : "of " + op + place_of_host_code() + " ") + "(" +
                 first_line(error) + ")";
    }
    step.zero_grad();
    output_ = {};  // memory of the pool
    backend_->abort();
    return false;
  }

  void forget_capture() override {
    is_captured_ = false;
    output_ = {};
    backend_->abort();
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
  bool is_captured_ = false;
};

}  // namespace duet
