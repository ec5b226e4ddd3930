#pragma once

#include "step_observer.h"

namespace duet {

// How one step is run.
enum class StepPath {
  kEager,             // op by op
  kRecord,            // op by op, while it is recorded for later replays
  kReplay,            // the recording
  kReplayAndCompare,  // the recording and op by op, from one snapshot, compared bit by bit
};

// Runs TrainStep::run(): a mode is which executor the trainer has. Called between TrainStep::begin() and end().
class StepExecutor {
 public:
  virtual ~StepExecutor() = default;
  // "eager" or "graph".
  virtual const char* mode() const = 0;
  // Decides how the next step runs. Changes no weight; every path is a real step with the same result.
  virtual StepPath choose(const MicroBatches& micro_batches, const StepObserver& observer) = 0;
  // `path` is what choose() said for this step, kReplayAndCompare instead of kReplay, or kEager, which always works.
  virtual StepResult run(StepPath path, const MicroBatches& micro_batches, StepObserver& observer) = 0;
  // Whether ranks must all take the same path, since collectives are part of what is captured.
  virtual bool ranks_need_same_path() const { return false; }
  // The host numbers of the step (TrainStep::append_key) were replaced, by a load.
  virtual void state_replaced() {}
};

}  // namespace duet
