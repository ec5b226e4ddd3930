#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include <c10/util/Exception.h>
#include "base/detail/op_rules.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "graph/cuda/capture_backend.h"
#include "graph/record/at_splits.h"
#include "graph/replay/segment_replay.h"

namespace duet {

// A recorded step as device graphs, one per segment. The step that is recorded is a real one; the one after it is
// captured, which writes down its work instead of doing it, and is then the first that is replayed.
class CudaReplay : public SegmentReplay {
 public:
  explicit CudaReplay(std::unique_ptr<CaptureBackend> backend) : backend_(std::move(backend)) {}

  ReplayTensors compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& /*recorded*/,
                        const NamedTensors& /*parameters*/) override {
    recording_ = recording;
    if (recording->keeps_tensors()) {
      failure_ = "somebody keeps a tensor of the step, whose memory a device graph uses again";
    } else if (recording->reads_changing_tensors()) {
      failure_ =
          "a tensor from outside the step is another one at each step, and a device graph has one address for it";
    }
    return {};
  }
  void run(std::size_t segment) override { backend_->replay(segment); }

  bool is_ready() const override { return is_captured_; }
  std::optional<ReplayTensors> capture(const CaptureRun& run) override {
    bool short_of_memory = false;
    std::optional<ReplayTensors> captured = try_capture(run, short_of_memory);
    if (short_of_memory && backend_->free_memory()) captured = try_capture(run, short_of_memory);
    is_captured_ = captured.has_value();
    return captured;
  }
  void forget_capture() override {
    is_captured_ = false;
    backend_->abort();
  }

  c10::Storage memory_of(int /*storage*/) const override { return {}; }  // nothing is kept
  int64_t bytes() const override { return backend_->bytes(); }
  std::string text(const NamedTensors& /*names*/) const override {
    return std::to_string(segments()) + " device graph(s) of " + std::to_string(op_count()) + " ops in all\n";
  }
  StepExplanation::Ops ops() const override { return {op_count(), op_count(), op_count(), {}}; }

 private:
  // The allocator is, or the driver, which takes memory for a graph beside it.
  static bool is_short_of_memory(const std::exception& error) {
    constexpr int32_t kCudaErrorMemoryAllocation = 2;
    const auto* of_device = dynamic_cast<const c10::AcceleratorError*>(&error);
    return dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr ||
           (of_device != nullptr && of_device->get_error_code() == kCudaErrorMemoryAllocation);
  }

  std::optional<ReplayTensors> try_capture(const CaptureRun& run, bool& short_of_memory) {
    run.step.zero_grad();  // backward allocates gradients in the pool
    failure_.clear();
    std::string op;  // that runs
    try {
      const std::vector<at::Generator> generators = recording_->generators();
      backend_->begin(generators);
      std::size_t graphs = 1;
      // At a split point one graph ends and the next begins; hooks are not called, since nothing has run yet.
      AtSplits capturing(run.observer, [&](SplitPoint, const StepView&, const std::function<void()>&) {
        backend_->end();
        backend_->begin(generators);
        ++graphs;
      });
      ReplayTensors captured;
      captured.output = run.follow(capturing, [&](const auto& handle, auto& stack, const auto& call) {
        op = full_name(handle);
        backend_->run_op(handle, stack, call);
        op.clear();
      });
      backend_->end();
      require<GraphError>(graphs == segments(), "hooks act at other places than when it was recorded");
      for (const auto& parameter : run.step.parameters()) captured.gradients.push_back(parameter.second.grad());
      return captured;
    } catch (const std::exception& error) {
      short_of_memory = is_short_of_memory(error);
      failure_ = "the device refused the capture " + (op.empty() ? "" : "of " + op + run.place() + " ") + "(" +
                 first_line(error) + ")";
    }
    run.step.zero_grad();
    backend_->abort();
    return std::nullopt;
  }

  std::size_t segments() const { return recording_->splits.size() + 1; }
  int64_t op_count() const { return recording_ ? static_cast<int64_t>(recording_->ops.size()) : 0; }

  std::unique_ptr<CaptureBackend> backend_;
  std::shared_ptr<const StepProgram> recording_;
  bool is_captured_ = false;
};

}  // namespace duet
