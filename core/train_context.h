#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>
#include <ATen/core/Tensor.h>
#include "../base/batch.h"
#include "../base/state_dict.h"
#include "../checkpoint/checkpoint.h"
#include "../distributed/communicator.h"
#include "../metrics/metric.h"
#include "../optim/groups/param_group.h"

namespace duet {

// How steps are run.
enum class Mode {
  kEager,  // op by op: EagerTrainer, what one debugs with
  kGraph,  // captured and replayed: GraphTrainer, what one trains with
};

const char* to_string(Mode mode);
// "eager" or "graph", as on a command line. Throws ConfigError for anything else.
Mode parse_mode(const std::string& text);

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
  at::Tensor grad_norm;  // global norm of the gradients before clipping; undefined without ClipNorm or log_grad_norm
  // Copies of what the model gave for each micro-batch (StepOutput::outputs); none unless a hook wants_outputs().
  std::vector<NamedTensors> outputs{};

  // Every tensor that is there, with its name.
  NamedTensors all() const;
};

// Where the numbers of a step stop being finite: the first op that makes NaN or infinities out of finite numbers, or
// the first tensor read that holds NaN before the step. Infinities that are meant (a mask of -inf) do not count until
// they become NaN.
struct NonFiniteOp {
  // "aten::log gives 3 NaN and 0 infinite among 128 numbers, in the forward pass, in or after module 'layer3' (the last
  // weight read is 'layer3.weight')"; empty: all numbers are finite.
  std::string text;
  std::string op;         // "aten::log", or the one that reads what was not finite before
  std::string parameter;  // that was read last; empty: none was read before
  int64_t micro_batch = 0;
  std::vector<int64_t> rows{};  // samples of the micro-batch, where the tensor has a row for each; at most 16
  NamedTensors tensors{};       // copies on the CPU, contiguous: "input.0", ..., "output.0", ...
};

// What code inside a step may see.
struct StepView {
  const NamedTensors& parameters;
  const StepResult& output;
  // In in_step: steps applied so far, this one included unless it was skipped (int64, one element), and whether it was
  // skipped (float32, one element, 0 or 1; undefined if steps are never skipped). Both on the device.
  at::Tensor applied{};
  at::Tensor skipped{};
  bool scale_adapts = false;  // in in_step: the loss is scaled by a number that falls with each step that is skipped
};

// How many numbers lie between two edges: counts[i] of them from edges[i] on and below edges[i + 1], the last edge
// included. Numbers that are not finite are left out.
struct Histogram {
  std::vector<double> edges;    // rising, one more than counts
  std::vector<int64_t> counts;  // at least one
  double sum = 0, sum_of_squares = 0;
};
using NamedHistograms = std::vector<std::pair<std::string, Histogram>>;

// For on_log: "train", "epoch", "val" or "test", and the numbers of the line by name ("loss", "lr", "step", ...).
struct LogLine {
  std::string kind;
  std::map<std::string, double> values;
};

// Where a run leaves what shall be logged, and where LoggerHook finds it. A number takes one of three ways into a line:
//
//   of a step         run.log(name, value). The trainer puts the step's results before them: the loss, what the task
//                     returned in StepOutput::log, grad_norm. LoggerHook takes all of them over at after_train_iter,
//                     as tensors on the device, and reads them when a line of kind "train" is due.
//   at any time       run.log.gauge(name, f): asked when such a line is written.
//   of an evaluation  what the metrics gave, TrainContext::evaluation.metrics: a line of kind "val" or "test".
//
// So nothing is read between lines, and without somebody who logs everything is dropped. Texts, pictures and histograms
// go to everybody who listens, at once.
class RunLog {
 public:
  using Gauge = std::function<double()>;
  using ImageListener = std::function<void(const std::string& name, const at::Tensor& pixels)>;
  using TextListener = std::function<void(const std::string& name, const std::string& text)>;
  using HistogramListener = std::function<void(const NamedHistograms& histograms)>;

  // A number that can be asked at any time, under a name that is logged: "lr", "memory". Replaces one of that name.
  void gauge(const std::string& name, Gauge gauge) { gauges_[name] = std::move(gauge); }
  void remove_gauge(const std::string& name) { gauges_.erase(name); }
  const std::map<std::string, Gauge>& gauges() const { return gauges_; }

  // A value of this step: 0-dim, on any device. The last one of a name counts; the next step starts with none.
  void operator()(const std::string& name, at::Tensor value);
  void operator()(const std::string& name, double value);
  const std::vector<std::pair<std::string, at::Tensor>>& values() const { return values_; }
  // By the trainer: a step begins, a step has run.
  void start_step() { values_.clear(); }
  void put_results(const StepResult& result);

  // uint8 [height, width, 3] RGB on the CPU, a text, or the histograms of one step together; go to everybody who
  // listens, at once.
  void image(const std::string& name, const at::Tensor& pixels) const { tell(&Listener::image, name, pixels); }
  void text(const std::string& name, const std::string& text) const { tell(&Listener::text, name, text); }
  void histograms(const NamedHistograms& histograms) const { tell(&Listener::histograms, histograms); }
  bool wants_images() const { return tell(&Listener::image); }
  bool wants_histograms() const { return tell(&Listener::histograms); }

  // Keeps somebody listening for as long as it, or a copy of it, lives; may outlive the log.
  using Listening = std::shared_ptr<const void>;
  // Without a function for pictures, or for histograms, none are made for this listener.
  [[nodiscard]] Listening listen(ImageListener image, TextListener text, HistogramListener histograms = nullptr);

 private:
  struct Listener {
    ImageListener image;
    TextListener text;
    HistogramListener histograms;
  };
  // Calls this function of every listener that has it, or none without anything to tell. Whether one has it.
  template <class Function, class... Told>
  bool tell(Function Listener::* function, const Told&... told) const;

  std::map<std::string, Gauge> gauges_;
  std::vector<std::pair<std::string, at::Tensor>> values_;
  std::vector<std::weak_ptr<const Listener>> listeners_;
};

template <class Function, class... Told>
bool RunLog::tell(Function Listener::* function, const Told&... told) const {
  bool any = false;
  for (const auto& one : listeners_) {
    const auto listener = one.lock();
    if (!listener || !((*listener).*function)) continue;
    any = true;
    if constexpr (sizeof...(told) > 0) ((*listener).*function)(told...);
  }
  return any;
}

class DataSource;
class Task;
enum class HookPoint : int;

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
  double epoch_seconds = 0;  // that the last epoch took, validations left out; 0: unknown; set by IterTimerHook

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
  double data_seconds = 0;                      // that the loop waited for the step's data: the longest of all ranks
  double seconds = 0;                           // of the whole step with its data; set by IterTimerHook

  // What `result` holds. Throws ConfigError at a point where there is none yet.
  const at::Tensor& loss() const;
  // What the model gave for a micro-batch, under the task's name for it: "prediction". Throws ConfigError where there
  // is none: for a hook that wants_outputs(), at the points that have a result.
  const at::Tensor& output(const std::string& name, std::size_t micro_batch = 0) const;
  // Of all parameters that have one, in their order. After the step they are what the optimizer was given.
  std::vector<at::Tensor> gradients() const;
};

// A validation, test or prediction, and the results of the last one.
struct CurrentEvaluation {
  const DataSource* data = nullptr;       // that is read; *_epoch and *_iter points
  const Batch* batch = nullptr;           // *_iter points
  const NamedTensors* outputs = nullptr;  // after_*_iter
  std::string dataset{};                  // the batch's, of several named ones; empty: the only one
  int64_t batch_index = 0;                // in its data
  MetricValues metrics{};                 // after_val_epoch and after_test_epoch on
  std::string first_metric{};             // the one that the first metric names first; empty: unknown
  std::string averaged_by{};              // the hook whose average of the weights evaluation uses; empty: none so far
};

// How a run ends: reached its limits; a hook asked to stop; interrupted, so that it shall go on later; stopped by a
// hook that found it diverged; failed.
enum class RunOutcome { kNone, kRunning, kFinished, kStopped, kInterrupted, kDiverged, kFailed };

const char* to_string(RunOutcome outcome);

// What a run is: training, with the evaluations in it, or an evaluation on its own.
enum class RunKind { kNone, kTraining, kValidation, kTest, kPrediction };

const char* to_string(RunKind kind);

// Whether a run goes on, and how it ends.
// Its members are the wishes of all hooks about the run, one each.
struct RunControl {
  // Ends training after this step, or after the validation that runs now; after_train runs as usual.
  void request_stop(const std::string& reason) { stop(reason, RunOutcome::kStopped); }
  // The same for a run that shall go on later (a signal, a time limit). A validation that runs now is abandoned,
  // without after_val_epoch, and made up for by the resume; CheckpointHook saves.
  void interrupt(const std::string& reason) { stop(reason, RunOutcome::kInterrupted); }
  // As request_stop(), for a run that has diverged: no success, though nothing is thrown. Counts whenever it is found:
  // after another reason to stop, and at after_train.
  void stop_diverged(const std::string& reason);
  // Whether it was found that the run shall go back, or has diverged: nothing of it is worth saving.
  bool has_gone_wrong() const { return stop_outcome == RunOutcome::kDiverged || !rollback_reason.empty(); }
  // For a hook that is about to throw at after_train: those after it then see a run that failed, of which nothing is
  // kept as a result. The first text stays.
  void fail(const std::string& text);

  // After this step goes back to the newest good checkpoint of the run that was saved before step `bad_step`, the first
  // one that went wrong, and on from there with the data that comes now: what led here is left out. Later checkpoints
  // are set aside, and so is one that two rollbacks took, each time on other data, and whose first step went wrong both
  // times: its weights are finite, but bad. Of several requests the one of the earliest bad step counts. On all ranks
  // at the same step. Without such a checkpoint the run ends, with NonFiniteError. In train() alone: a loop of one's
  // own has no source to go on with, and gets a ConfigError.
  void request_rollback(const std::string& reason, int64_t bad_step);

  // Validates after this step, as val_interval does; train() takes its validation data for it. On all ranks at the same
  // step. Without such data nothing happens.
  void request_validation() { validation_requested = true; }
  // CheckpointHook saves after this step, or after the next one if it has already run in this step. On all ranks at the
  // same step.
  void request_save() { save_requested = true; }
  // The same for what one rank alone finds, by its clock or for a signal: all ranks save after the same step, the next
  // one at the latest.
  void propose_save() { save_proposed = true; }

  // Who may interrupt the run from outside, for a signal or a time limit: `look` is called after each step, between the
  // batches of an evaluation, and ten times a second while the run waits for data. For this run alone.
  void watch(std::function<void()> look) { watchers.push_back(std::move(look)); }
  void look() const;
  // Whether the run breaks off what it does now. Of several ranks each may know of it before they agree.
  bool is_interrupted() const { return outcome == RunOutcome::kRunning && stop_outcome == RunOutcome::kInterrupted; }

  // While it is set, graph mode puts off what it does now and then beside a replay (checks of the host code,
  // comparisons with an eager run), but for what cannot wait: for whoever measures steps.
  bool postpones_checks = false;

  // Whether the run is an evaluation on its own, which is no training to report on and nothing to interrupt.
  bool only_evaluates() const { return kind != RunKind::kNone && kind != RunKind::kTraining; }

  RunKind kind = RunKind::kNone;  // of the run that is open
  bool validates = true;          // false: in train() without validation data
  bool validation_requested = false, save_requested = false, save_proposed = false;
  std::string stop_reason{};  // the first one; empty: none
  RunOutcome stop_outcome = RunOutcome::kNone;
  // Of the training that is open, or of the last one. Final at after_train and after_run.
  RunOutcome outcome = RunOutcome::kNone;
  std::string rollback_reason{};  // of a rollback that is due; empty: none
  int64_t rollback_bad_step = 0;
  int64_t rolled_back_to = -1;       // the step of the checkpoint that the last rollback took; -1: none yet
  int64_t times_rolled_back_to = 0;  // in a row
  std::string error{};               // on_exception and the points after it, of a run that failed
  std::vector<std::function<void()>> watchers{};

 private:
  void stop(const std::string& reason, RunOutcome how);
};

// Where the checkpoints that a run saves branch off from those that others have left in the same folder.
struct CheckpointBranch {
  int64_t step = 0;                 // that the run began with, or has loaded last
  std::set<std::string> folders{};  // that it has saved into since: what they hold of later steps is its own
};

// What hooks may have the trainer do.
class TrainerServices {
 public:
  virtual ~TrainerServices() = default;
  // All that a bit-exact resume needs, of this rank and as it is: no copies, and no hook is asked to prepare.
  virtual StateDict state_dict() const = 0;
  // The same for a checkpoint, of all ranks: they take it together, and hooks may prepare theirs first.
  virtual StateDict checkpoint_state() = 0;
  // Calls the hooks that act at `point`: for a hook whose work is one (a save, a line of the log).
  virtual void call_hooks(HookPoint point) = 0;
  // Of the steps to come: see BaseTrainer::set_mode.
  virtual void set_mode(Mode mode) = 0;
  // Runs forward and backward of these micro-batches once more, op by op, and finds the first numbers that are not
  // finite. Weights, optimizer and gradients stay; buffers and generators go on as in a step.
  virtual NonFiniteOp trace_non_finite(const MicroBatches& micro_batches) = 0;
};

// What a hook may see and do, lent to it for one call.
struct TrainContext {
  Task& task;
  HyperParameters& hyper_parameters;
  TrainerServices& trainer;
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
  RunIdentity identity{};  // of this run, for the checkpoints that it saves
  CheckpointBranch branch{};
  std::string saved_checkpoint{};  // the path of the last one that is complete
  LogLine log_line{};              // the last one that LoggerHook wrote

  // For a hook that acts on what validations give, at before_train: a warning if this run has no data for one. `what`
  // as "[EarlyStoppingHook] monitor 'accuracy'".
  void warn_without_validation(const std::string& what) const;
};

}  // namespace duet
