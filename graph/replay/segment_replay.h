#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "core/detail/step_executor.h"
#include "core/trainer.h"
#include "graph/guards/trace_check.h"
#include "graph/record/step_program.h"

namespace duet {

class CpuProgram;

// The tensors that every run of a replay writes its results and gradients into.
struct ReplayTensors {
  StepResult output;
  std::vector<at::Tensor> gradients;  // by parameter; undefined where the step gives none
};

// One step whose work a device captures while its host code runs.
struct CaptureRun {
  StepCode& step;
  StepObserver& observer;
  // Runs the host code on the static inputs, each op by `run_op`, and notes whether it is the recorded one.
  std::function<StepResult(StepObserver& observer, const TraceCheck::RunOp& run_op)> follow;
  // Where the host code is, for errors: " after ...".
  std::function<std::string()> place;
};

// What replays the kernels of a recorded step, segment by segment; host code acts between them. See CpuProgram and
// CudaReplay.
class SegmentReplay {
 public:
  virtual ~SegmentReplay() = default;

  // `recorded` is what the recorded step gave, `parameters` have its gradients.
  virtual ReplayTensors compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& recorded,
                                const NamedTensors& parameters) = 0;
  virtual void run(std::size_t segment) = 0;
  // Why it cannot replay; empty: it can.
  const std::string& failure() const { return failure_; }

  // Whether the device has captured it already.
  virtual bool is_ready() const { return true; }
  // Nothing if the device refuses; failure() says why.
  virtual std::optional<ReplayTensors> capture(const CaptureRun& /*run*/) { return std::nullopt; }
  virtual void forget_capture() {}

  // Whether faster kernels are known that nobody has tried yet, which takes longer than many runs; try_kernels() does
  // so, between two runs. If it throws nothing can be replayed any more.
  virtual bool has_untried_kernels() const { return false; }
  virtual void try_kernels() {}

  // The memory of a storage of the recording that outlives a run.
  virtual c10::Storage memory_of(int storage) const = 0;
  // What lies in `from` lies in `to` from here on.
  virtual void move_tensors(const c10::StorageImpl* /*from*/, const c10::Storage& /*to*/) {}
  // Whether values that host code reads may be computed before a run, which waits for them.
  virtual bool guards_reads() const { return false; }

  virtual int64_t bytes() const = 0;
  // `names`: of tensors that the step reads and gives.
  virtual std::string text(const NamedTensors& names) const = 0;
  // How many there are before and after each pass.
  virtual StepExplanation::Ops ops() const = 0;
  // What runs on the CPU; null on another device.
  virtual CpuProgram* cpu_program() { return nullptr; }

 protected:
  std::string failure_;
};

}  // namespace duet
