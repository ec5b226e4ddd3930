#pragma once

#include "core/train_step.h"
#include "graph/detail/captured_step.h"

#include <string>

namespace duet {

// Runs one step both ways from one snapshot: replayed, then eager, and compares weights, buffers, optimizer state, loss and
// random state bit by bit. The eager result stays in place either way.
struct ParityResult {
  StepResult output;      // of the eager run
  std::string difference;   // name of the first tensor that differs; empty if none does
};
ParityResult run_both_ways(CapturedStep& step, TrainStep& rule, const MicroBatches& micro_batches, StepObserver& points);

}  // namespace duet
