#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include "../base/options.h"
#include "../core/hook.h"

namespace duet {

// The schedule is that of torch.profiler.schedule and counts the steps of one call of train().
struct ProfilerHookOptions {
  int64_t skip_first = 0;       // steps before the first cycle
  int64_t wait = 1;             // steps of a cycle that nothing is done in
  int64_t warmup = 1;           // steps with the tracer on and its results dropped
  int64_t active = 3;           // >= 1: steps in the trace
  int64_t repeat = 1;           // cycles; 0: until training ends
  bool record_shapes = false;   // of operator inputs
  bool profile_memory = false;  // allocations
  bool with_stack = false;      // TorchScript's source lines
  bool with_flops = false;      // counts those of matrix products and convolutions, for the log
  bool cuda = true;             // kernels and copies, if training runs on a GPU
  bool nvtx = false;            // ranges for Nsight: every hook point and step, in the whole run
  std::string folder = "";      // of the traces; empty: <work_dir>/trace

  static const OptionFields& fields();
};

class NvtxRanges;

// Writes traces of some steps as <folder>/step-<first>-<last>.json, numbered as in the log, for chrome://tracing,
// Perfetto or TensorBoard: operators, kernels, "hook:<name>:<point>" and "ProfilerStep#<step>", from the end of the
// step before. One that training ends in the middle of is written too. Each of several ranks writes its own:
// <folder>/step-<first>-<last>.rank-<rank>.json. In graph mode the traced steps are replays alone: checks and
// comparisons come after the trace.
class ProfilerHook : public Hook {
 public:
  explicit ProfilerHook(ProfilerHookOptions options = {});
  ~ProfilerHook() override;

  std::string name() const override { return "profiler"; }
  int priority() const override { return kVeryLow; }

  // Throws ConfigError if there is no folder to write to, or for NVTX without CUDA.
  void before_train(TrainContext& context) override;
  void before_train_iter(TrainContext& context) override;
  void after_train_iter(TrainContext& context) override;
  void after_train(TrainContext& context) override;

 private:
  enum class Phase { kOff, kWarmup, kRecording, kLast };  // kLast: the last step that is recorded
  struct Trace;

  Phase phase_of(int64_t step) const;
  // Brings the tracer to the phase of the next step.
  void go_on(TrainContext& context);
  void write_trace(TrainContext& context);

  ProfilerHookOptions options_;
  std::string folder_;
  int64_t steps_ = 0;             // of this run
  std::unique_ptr<Trace> trace_;  // while it warms up or records
  std::unique_ptr<NvtxRanges> nvtx_;
};

}  // namespace duet
