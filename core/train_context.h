#pragma once

#include "../base/batch.h"
#include "message_hub.h"
#include "../base/state_dict.h"
#include "../optim/hyper_parameters.h"
#include "step_observer.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>

namespace duet {

class Communicator;
class DataSource;
class Task;

using MetricValues = std::map<std::string, double>;

// How a run ends: reached its limits; a hook asked to stop; interrupted, so that it shall go on later; failed.
enum class RunOutcome { kNone, kRunning, kFinished, kStopped, kInterrupted, kFailed };

const char* to_string(RunOutcome outcome);

// Steps of a run with these limits, whichever comes first; 0: no limit, or unknown. `epoch_offset` as in TrainContext.
inline int64_t planned_steps(int64_t max_steps, int64_t max_epochs, int64_t steps_per_epoch,
                               int64_t epoch_offset = 0) {
  const int64_t epochs = max_epochs * steps_per_epoch, by_epochs = epochs > 0 ? epochs + epoch_offset : 0;
  if (max_steps <= 0) return by_epochs;
  return by_epochs > 0 ? std::min(max_steps, by_epochs) : max_steps;
}

// What a hook may see and do, lent to it for one call. Counters count finished steps.
struct TrainContext {
  Task& task;
  HyperParameters& hyper_parameters;
  Stateful& trainer_state;  // everything a bit-exact resume needs, hooks included; taking it calls before_save_checkpoint
  std::string mode;         // "eager" or "graph"
  std::string work_dir;     // empty: nothing is written
  Communicator* communicator = nullptr;  // the ranks that train together; null: one process
  bool is_main = true;      // whether this is rank 0, which writes and logs for all

  int64_t step = 0;       // finished steps of the whole run
  int64_t max_steps = 0;  // 0: no limit
  int64_t epoch = 0;        // epoch that runs now, from 0
  int64_t max_epochs = 0;   // 0: no limit
  int64_t steps_per_epoch = 0;  // 0: unknown
  int64_t epoch_offset = 0;       // the next epoch e starts after e * steps_per_epoch + this: earlier ones may have had
                                  // other lengths (another number of ranks, batch_size or accumulate)
  int64_t step_in_epoch = 0;

  const MicroBatches* micro_batches = nullptr;        // the step's micro-batches; *_train_iter points
  const StepResult* output = nullptr;  // its results on the device; after_train_iter and step points
  const Batch* batch = nullptr;          // val, test and predict iters
  const NamedTensors* outputs = nullptr; // after_{val,test,predict}_iter
  int64_t iter = 0;                      // index of that batch
  MetricValues metrics{};                  // results of the last evaluation; after_{val,test}_epoch on
  std::string first_metric{};            // of these the one that the first metric names first; empty: unknown
  double data_seconds = 0;               // time the loop waited for this step's data
  double step_seconds = 0;             // time of the whole step with its data; set by IterTimerHook
  std::string error{};                     // on_exception, and after_train/after_run of a failed run

  // Ends training after this step, or after the validation that runs now; after_train runs as usual.
  void request_stop(const std::string& reason) { stop(reason, RunOutcome::kStopped); }
  // The same for a run that shall go on later (a signal, a time limit). A validation that runs now is abandoned, without
  // after_val_epoch, and made up for by the resume; CheckpointHook saves.
  void interrupt(const std::string& reason) { stop(reason, RunOutcome::kInterrupted); }
  std::string stop_reason{};  // the first one; empty: none
  RunOutcome stop_outcome = RunOutcome::kNone;
  // Of the run that is open, or of the last one. Final at after_train and after_run.
  RunOutcome outcome = RunOutcome::kNone;

  std::string evaluated_average{};  // the hook whose average of the weights evaluation uses; empty: none so far
  DataSource* data = nullptr;       // that train() reads; null in a loop of the user's own
  MessageHub messages{};            // what shall be logged

 private:
  void stop(const std::string& reason, RunOutcome how) {
    if (!stop_reason.empty()) return;
    stop_reason = reason.empty() ? "a hook asked" : reason;
    stop_outcome = how;
  }
};

// Of the run that it tells of.
inline int64_t planned_steps(const TrainContext& context) {
  return planned_steps(context.max_steps, context.max_epochs, context.steps_per_epoch, context.epoch_offset);
}

}  // namespace duet
