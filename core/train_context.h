#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>
#include "../base/batch.h"
#include "../base/state_dict.h"
#include "../distributed/communicator.h"
#include "../metrics/metric.h"
#include "../optim/hyper_parameters.h"
#include "run_log.h"
#include "step_observer.h"

namespace duet {

class DataSource;
class Task;

// Where a run stands and how far it shall go. Counts finished steps.
struct Progress {
  int64_t step = 0;             // of the whole run
  int64_t max_steps = 0;        // 0: no limit
  int64_t epoch = 0;            // that runs now, from 0
  int64_t max_epochs = 0;       // 0: no limit
  int64_t steps_per_epoch = 0;  // 0: unknown
  // The next epoch e starts after e * steps_per_epoch + this: earlier ones may have had other lengths (another number
  // of ranks, batch_size or accumulate).
  int64_t epoch_offset = 0;
  int64_t step_in_epoch = 0;

  // Steps of a run with these limits, whichever comes first; 0: no limit, or unknown.
  int64_t planned_steps() const;
  // The same, and at least those of a run that is through.
  int64_t run_length() const;
};

// The step that runs now.
struct CurrentStep {
  const MicroBatches* micro_batches = nullptr;  // *_train_iter points and those inside the step
  const StepResult* result = nullptr;           // on the device; after_train_iter and the points inside the step
  const NamedTensors* parameters = nullptr;     // that it trains
  double data_seconds = 0;                      // that the loop waited for the step's data
  double seconds = 0;                           // of the whole step with its data; set by IterTimerHook

  // What `result` holds. Throws ConfigError at a point where there is none yet.
  const at::Tensor& loss() const;
  // Of all parameters that have one, in their order. After the step they are what the optimizer was given.
  std::vector<at::Tensor> gradients() const;
};

// A validation, test or prediction, and the results of the last one.
struct CurrentEvaluation {
  const Batch* batch = nullptr;           // *_iter points
  const NamedTensors* outputs = nullptr;  // after_*_iter
  int64_t batch_index = 0;
  MetricValues metrics{};      // after_val_epoch and after_test_epoch on
  std::string first_metric{};  // the one that the first metric names first; empty: unknown
  std::string averaged_by{};   // the hook whose average of the weights evaluation uses; empty: none so far
};

// How a run ends: reached its limits; a hook asked to stop; interrupted, so that it shall go on later; failed.
enum class RunOutcome { kNone, kRunning, kFinished, kStopped, kInterrupted, kFailed };

const char* to_string(RunOutcome outcome);

// Whether a run goes on, and how it ends.
struct RunControl {
  // Ends training after this step, or after the validation that runs now; after_train runs as usual.
  void request_stop(const std::string& reason) { stop(reason, RunOutcome::kStopped); }
  // The same for a run that shall go on later (a signal, a time limit). A validation that runs now is abandoned,
  // without after_val_epoch, and made up for by the resume; CheckpointHook saves.
  void interrupt(const std::string& reason) { stop(reason, RunOutcome::kInterrupted); }

  std::string stop_reason{};  // the first one; empty: none
  RunOutcome stop_outcome = RunOutcome::kNone;
  // Of the run that is open, or of the last one. Final at after_train and after_run.
  RunOutcome outcome = RunOutcome::kNone;
  std::string error{};  // on_exception, and after_train and after_run of a run that failed

 private:
  void stop(const std::string& reason, RunOutcome how);
};

// What a hook may see and do, lent to it for one call.
struct TrainContext {
  Task& task;
  HyperParameters& hyper_parameters;
  std::function<StateDict()> checkpoint_state;       // all that a bit-exact resume needs; all ranks take it together
  std::string mode{};                                // "eager" or "graph"
  std::string work_dir{};                            // empty: nothing is written
  Communicator* communicator = one_process().get();  // the ranks that train together; never null
  bool is_main = true;                               // whether this is rank 0, which writes and logs for all
  DataSource* data = nullptr;                        // that train() reads; null in a loop of the user's own

  Progress progress{};
  CurrentStep step{};
  CurrentEvaluation evaluation{};
  RunControl control{};
  RunLog log{};
};

}  // namespace duet
