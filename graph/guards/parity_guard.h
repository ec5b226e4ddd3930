#pragma once

#include <string>
#include "core/detail/train_step.h"
#include "graph/detail/captured_step.h"

namespace duet {

struct ParityResult {
  StepResult output;           // of the step that counts
  bool same_host_code = true;  // as recorded; if not, CapturedStep::difference() says what was different
  std::string difference;      // name of the first tensor that differs; empty if none does
};

// Runs one step both ways from one snapshot: replayed, then eager, and compares weights, buffers, optimizer state, loss
// and random state bit by bit. What stays in place is right either way.
ParityResult run_both_ways(CapturedStep& captured, TrainStep& step, const MicroBatches& micro_batches,
                           StepObserver& observer);

}  // namespace duet
