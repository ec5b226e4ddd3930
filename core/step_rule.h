#pragma once

#include "../base/batch.h"
#include "../distributed/communicator.h"
#include "../optim/hyper_parameters.h"
#include "../base/state_dict.h"
#include "task.h"

#include <cstdint>
#include <string>
#include <vector>

namespace duet {

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

// The moments of one step at which somebody may act. The host points run ordinary code between kernels;
// in_step adds tensor code that is captured with the step.
class StepObserver {
 public:
  virtual ~StepObserver() = default;
  // Whether anybody acts at a host point: a captured step is then split there.
  virtual bool splits() const { return false; }
  // Changes when the set of those who act inside steps changes.
  virtual int64_t version() const { return 0; }
  virtual void after_backward(const StepView&) {}
  virtual void before_optimizer_step(const StepView&) {}
  virtual void in_step(StepView&) {}
};

// From micro-batches to new weights. run() is plain code over tensors that reads nothing back
// to the host and uses no host number that may change: EagerTrainer calls it, GraphTrainer records it.
class StepRule : public HyperParameters, public Stateful {
 public:
  // Host side of the step: brings the hyper-parameters and weights of these micro-batches to the device. Never captured.
  virtual void begin(const MicroBatches& micro_batches) = 0;
  virtual StepResult run(const MicroBatches& micro_batches, StepObserver& points) = 0;
  // Host side after the step ran, in whichever way.
  virtual void end() = 0;
  // Host side at the end of training and before its state is saved: finds out what is still open and throws if that is an
  // error.
  virtual void settle() {}

  // The ranks that run steps together.
  virtual Communicator& communicator() const { return *one_process(); }
  // A number that is the same on ranks whose models still have the same layout, that is which parameters train and what
  // shapes the buffers have, and that set the same hyper-parameters.
  virtual double fingerprint() const { return 0; }
  // Called on all ranks where it is not: the next step, which runs op by op, agrees on these even on a rank that
  // sees no change of its own. Otherwise one that does would wait for the others, and they for it.
  virtual void agree_anew() {}

  // Why run() cannot be captured at all, in words for the user; empty: it can.
  virtual std::string why_not_captured() const { return {}; }

  // Appends every host number that a captured run() would freeze; a step is captured once per key.
  virtual void append_key(std::vector<int64_t>& key) const = 0;

  virtual Task& task() = 0;
  // Trainable parameters, and every further tensor that run() changes (buffers, optimizer state).
  virtual const NamedTensors& parameters() const = 0;
  virtual NamedTensors mutable_state() const = 0;
};

}  // namespace duet
