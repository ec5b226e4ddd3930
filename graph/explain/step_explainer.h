#pragma once

#include "core/trainer.h"
#include "graph/detail/capture_method.h"

namespace duet {

// BaseTrainer::explain() in graph mode: captures one step in a sandbox and looks at it from all sides.
StepExplanation explain_step(TrainStep& step, const CaptureMethod& method, const MicroBatches& micro_batches,
                             StepObserver& observer);

}  // namespace duet
