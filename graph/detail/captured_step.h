#pragma once

#include "core/train_step.h"
#include "graph/detail/static_inputs.h"
#include "graph/record/tape.h"

#include <ATen/core/Generator.h>

#include <exception>
#include <string>
#include <vector>

namespace duet {

// One step captured for one signature: static inputs, segments of kernels with host points between them, and the
// tensors that its results and gradients lie in. What a segment is differs: see TapeStep and CudaStep.
class CapturedStep {
 public:
  explicit CapturedStep(const MicroBatches& example) : inputs_(example) {}
  virtual ~CapturedStep() = default;

  // Runs one real step on `micro_batches`, watching whether it can be captured. False if it cannot: failure() says why.
  // With `strict` that throws GraphError instead, before the step has changed anything.
  virtual bool capture(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points, bool strict, StepResult& output) = 0;
  // Makes the step ready to be replayed, without training. False if the device refuses: failure() says why.
  virtual bool prepare(TrainStep& /*rule*/, StepObserver& /*points*/) { return true; }
  // Runs one step on `micro_batches`, which has the layout of the captured one.
  StepResult replay(TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);

  const std::string& failure() const { return failure_; }
  // What a step changes besides the rule's tensors: tensors of hooks and tasks, and generators of their own.
  const NamedTensors& outside() const { return outside_; }
  std::vector<at::Generator>& generators() { return generators_; }
  virtual int64_t bytes() const { return inputs_.bytes(); }
  virtual std::string text(const NamedTensors& names) const = 0;

  // Whether the captured hooks are the present ones.
  bool fits(const StepObserver& points) const { return splits_ == points.splits() && version_ == points.version(); }

 protected:
  enum class Moment { kAfterBackward, kBeforeOptimizerStep };

  class RecordingPoints;  // recording_points.h

  virtual void run_segment(std::size_t segment) = 0;
  // A copy of the results: what a user keeps must not change with the next step.
  StepResult copy_of_output() const;
  void remember(const StepObserver& points, const Tape& tape);

  StaticInputs inputs_;
  StepResult output_;
  std::vector<at::Tensor> gradients_;  // by parameter; undefined where the step gives none
  std::vector<Moment> moments_;        // host point after each segment but the last
  std::string failure_;

 private:
  void hand_out_gradients(TrainStep& rule);
  void take_back_gradients(TrainStep& rule);

  NamedTensors outside_;
  std::vector<at::Generator> generators_;
  bool splits_ = false;
  int64_t version_ = 0;
};

// Why a step may not be replayed that gave one of the rule's tensors other memory; empty if none did.
std::string replaced_tensor(const NamedTensors& before, const NamedTensors& after);

}  // namespace duet
