#pragma once

#include <string>
#include <vector>
#include "core/detail/train_step.h"
#include "graph/record/step_program.h"

namespace duet {

// Inputs of a captured step: tensors with fixed addresses, laid out as the micro-batches it was made from.
class StaticInputs {
 public:
  explicit StaticInputs(const MicroBatches& example);

  // Copies the values of `micro_batches` in; it has the layout of the example (same key).
  void fill(const MicroBatches& micro_batches);
  // The other way: what a step that runs only this once did to its batch.
  void copy_to(const MicroBatches& micro_batches) const;
  const MicroBatches& micro_batches() const { return micro_batches_; }
  int64_t bytes() const;

 private:
  MicroBatches micro_batches_;
};

// `result` with map(tensor) in the place of each tensor that it has.
template <class Map>
StepResult mapped(const StepResult& result, Map map) {
  const auto of = [&map](const at::Tensor& tensor) { return tensor.defined() ? map(tensor) : tensor; };
  StepResult made{of(result.loss), {}, of(result.grad_norm)};
  for (const auto& [name, tensor] : result.log) made.log.emplace_back(name, of(tensor));
  return made;
}

// One step captured for one signature: static inputs, segments of kernels with split points between them, and the
// tensors that its results and gradients lie in. What a segment is differs: see CpuStep and CudaStep.
class CapturedStep {
 public:
  explicit CapturedStep(const MicroBatches& example) : inputs_(example) {}
  virtual ~CapturedStep() = default;

  // Runs one real step op by op and records it. If it cannot be replayed, failure() says why afterwards; with `strict`
  // that throws GraphError instead, before the step has changed anything.
  StepResult record(TrainStep& step, const MicroBatches& micro_batches, StepObserver& observer, bool strict);
  // Makes the step ready to be replayed, without training. False if the device refuses: failure() says why.
  virtual bool prepare(TrainStep& /*step*/, StepObserver& /*observer*/) { return true; }
  // Runs one step on `micro_batches`, which has the layout of the captured one.
  StepResult replay(TrainStep& step, const MicroBatches& micro_batches, StepObserver& observer);

  const std::string& failure() const { return failure_; }
  // What a step changes besides TrainStep's tensors: tensors of hooks and tasks, and generators of their own.
  const NamedTensors& outside() const { return outside_; }
  std::vector<at::Generator>& generators() { return generators_; }
  virtual int64_t bytes() const { return inputs_.bytes(); }
  virtual std::string text(const NamedTensors& names) const = 0;

  // Whether the captured hooks are the present ones.
  bool fits(const StepObserver& observer) const {
    return splits_ == observer.splits() && version_ == observer.version();
  }

 protected:
  // Makes what a replay runs out of the recording. `recorded` and the parameters' gradients are those of the recorded
  // step.
  virtual void compile(const StepProgram& recording, TrainStep& step, const StepResult& recorded) = 0;
  virtual void run_segment(std::size_t segment) = 0;
  std::size_t segments() const { return split_points_.size() + 1; }

  StaticInputs inputs_;
  StepResult output_;
  std::vector<at::Tensor> gradients_;  // by parameter; undefined where the step gives none
  std::string failure_;

 private:
  void hand_out_gradients(TrainStep& step);
  void take_back_gradients(TrainStep& step);

  std::vector<SplitPoint> split_points_;  // after each segment but the last
  NamedTensors outside_;
  std::vector<at::Generator> generators_;
  bool splits_ = false;
  int64_t version_ = 0;
};

}  // namespace duet
