#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "graph/detail/static_inputs.h"
#include "graph/replay/segment_replay.h"

namespace duet {

// The gradients of a captured step as users get them: tensors of their own over the memory that each replay writes to.
class GradientHandles {
 public:
  bool empty() const { return handles_.empty(); }
  void clear() { handles_.clear(); }
  // `gradients`: of the captured step, by parameter, undefined where it gives none; `table`: of its recording.
  void make(const std::vector<at::Tensor>& gradients, const ValueTable& table);

  // What lies in `from` lies in `to` from here on.
  using MoveTensors = std::function<void(const c10::StorageImpl* from, const c10::Storage& to)>;
  // Before a replay.
  void leave_kept(const std::vector<at::Tensor>& gradients, const ValueTable& table, const MoveTensors& move_tensors);
  void hand_out(const NamedTensors& parameters) const;
  // The first parameter that has another gradient than the one that was handed out, or one over other memory, or none
  // any more; empty: there is none.
  std::string replaced(const NamedTensors& parameters, const std::vector<at::Tensor>& gradients) const;

 private:
  struct Handle {
    at::Tensor tensor{};
    std::size_t references = 0;  // to the memory, if nobody keeps it
    bool is_of_program = false;  // or it lies outside, in a bucket of several ranks, which the next step overwrites
  };
  std::vector<Handle> handles_;  // by parameter
};

// A recorded step as it is replayed: static inputs, segments of kernels with split points between them, and the tensors
// that its results and gradients lie in.
class ReplayedStep {
 public:
  ReplayedStep(const MicroBatches& example, std::unique_ptr<SegmentReplay> segments)
      : inputs_(example), segments_(std::move(segments)) {}

  StaticInputs& inputs() { return inputs_; }
  const StaticInputs& inputs() const { return inputs_; }
  SegmentReplay& segments() { return *segments_; }
  const SegmentReplay& segments() const { return *segments_; }
  const StepResult& output() const { return tensors_.output; }
  std::string text(const NamedTensors& names) const;

  // `recorded` and the parameters' gradients are those of the recorded step.
  void compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& recorded,
               const NamedTensors& parameters);
  // False if the device refuses.
  bool capture(const CaptureRun& run);
  void forget_capture();

  // On the values of the static inputs; `code` gets the gradients.
  StepResult run(StepCode& code, StepObserver& observer);

  // The same in parts: begin(), for each split point run_to_split() while that is true, run_last().
  using RunSegment = std::function<void(std::size_t segment)>;
  void begin();
  // Runs a segment by `run_segment`, then hooks. False if these have put gradients in place that the captured step does
  // not know: finish_by_op() then ends the step.
  bool run_to_split(std::size_t split, StepCode& code, StepObserver& observer, const RunSegment& run_segment);
  StepResult run_last(StepCode& code, const RunSegment& run_segment);
  StepResult finish_by_op(std::size_t split, StepCode& code, StepObserver& observer);
  void hand_out_gradients(const StepCode& code) const { handles_.hand_out(code.parameters()); }
  // Of the step that ran last: the parameter whose gradient a hook has replaced or removed, so that it ended op by op.
  const std::string& replaced_gradient() const { return replaced_gradient_; }

 private:
  // A number that an earlier step gave, and its memory.
  struct Copy {
    at::Tensor tensor;
    c10::Storage memory;

    bool is_free_for(const at::Tensor& other) const;
  };
  StepResult copied_output();
  const StepResult& results();

  StaticInputs inputs_;
  std::unique_ptr<SegmentReplay> segments_;
  std::shared_ptr<const StepProgram> recording_;
  std::vector<c10::VariableVersion> versions_;  // that a step moves, each as often
  ReplayTensors tensors_;
  GradientHandles handles_;
  std::vector<std::array<Copy, 2>> copies_;  // by tensor of the output: of the step before, and of the one before that
  std::optional<StepResult> results_;        // of the step that runs, once a hook has seen them
  std::string replaced_gradient_;
};

}  // namespace duet
