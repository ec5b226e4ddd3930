#pragma once

#include <cstdint>
#include <vector>
#include "../base/batch.h"

namespace duet {

// The micro-batches of one step and the weight of each in the step's mean loss.
struct MicroBatches {
  std::vector<Batch> batches;
  std::vector<double> weights;    // Task::weight of each micro-batch
  double total = 0;               // sum of the weights, over all micro-batches and all ranks
  int64_t samples_elsewhere = 0;  // that other ranks have in the same step
  int64_t weightless = 0;         // micro-batches that were left out, since their weight is 0

  // Of the whole step, all ranks together.
  int64_t samples() const;
  // Micro-batches that this rank read for it.
  int64_t fetched() const { return static_cast<int64_t>(batches.size()) + weightless; }
};

// What one step gives. All are 0-dim tensors on the device, valid until the next step.
struct StepResult {
  at::Tensor loss;       // weighted mean over the micro-batches
  NamedTensors log;      // the task's further values, weighted the same way
  at::Tensor grad_norm;  // global norm of the gradients before clipping; undefined without clipping
};

// What code inside a step may see.
struct StepView {
  const NamedTensors& parameters;
  const StepResult& output;
  // In in_step: steps applied so far, this one included unless it was skipped (int64, one element), and whether it was
  // skipped (float32, one element, 0 or 1; undefined if steps are never skipped). Both on the device.
  at::Tensor applied{};
  at::Tensor skipped{};
};

// Who acts inside a step, and where. At the two split points ordinary host code runs between kernels; in_step adds
// tensor code that is captured with the step.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Whether anybody acts at a split point: a captured step is then cut there.
  virtual bool splits() const { return false; }
  // Changes when the set of those who act inside steps changes.
  virtual int64_t version() const { return 0; }
  virtual void after_backward(const StepView&) {}
  virtual void before_optimizer_step(const StepView&) {}
  virtual void in_step(StepView&) {}
};

}  // namespace duet
