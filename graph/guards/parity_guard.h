#pragma once

#include <string>
#include <vector>
#include "core/detail/step_executor.h"
#include "graph/detail/captured_step.h"
#include "graph/kernels/bitexact_kernel.h"

namespace duet {

struct ParityResult {
  StepResult output;                   // of the eager run
  bool compared = true;                // not where host code differs, on any rank, or memory is short for both
  bool replayed = false;               // memory was short for the eager run: output is the replay's
  bool same_host_code = true;          // as recorded; if not, TraceCheck::difference() says what was different
  std::string replaced_gradient;       // by a hook: the rest of a replay would run op by op
  std::vector<std::string> differing;  // names of the tensors that differ
  std::string replay_error;            // of the replay, which failed where the eager run did not; empty: it did not
  // They follow from ops that give other bits from one run op by op to the next: the first such op and its place.
  // Empty: they do not.
  std::string unstable_op;
  // The first kernel of duet's own that is at fault, and what found it. Empty: LibTorch's kernels differ too, or the
  // difference did not come again.
  std::string kernel;
  const KernelPass* pass = nullptr;  // that found it
};

// Runs one step both ways from one snapshot: eager, then replayed, and compares weights, buffers, optimizer state, loss
// and random state bit by bit. What stays in place is the eager run's. Where they differ, several runs op by op are
// compared with one another; and if the step uses kernels of duet's own, it is replayed again without them, and with
// some of them, to find out which is at fault.
ParityResult run_both_ways(CapturedStep& captured, StepCode& step, const MicroBatches& micro_batches,
                           StepObserver& observer);

}  // namespace duet
