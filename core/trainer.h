#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "../data/data_source.h"
#include "../metrics/metric.h"
#include "hook.h"
#include "task.h"
#include "train_context.h"
#include "trainer_options.h"

namespace duet {

// What graph mode makes of a step, found out without training: BaseTrainer::explain().
struct StepExplanation {
  // Something that keeps the step from being captured.
  struct Obstacle {
    std::string op;       // "aten::nonzero"; empty if it is no op's
    std::string what;     // it does, to be read after the op: "reads a value on the host"
    std::string where;    // in the model: the parameter that was read last
    std::string source;   // of Python code: "train.py:31 in forward"
    std::string way_out;  // what to write instead
    int64_t times = 1;    // in the step
  };
  // Where the captured step is cut, since hooks act there.
  struct Split {
    std::string point;
    std::vector<std::string> hooks;
  };
  // What another value of a hyper-parameter does to the captured step.
  enum class Reach {
    kChangesResult,
    kCapturesAnew,  // it is part of the signature
    kFrozen,        // nothing, though it changes the result in eager mode: set() has no effect
    kNoEffect,      // nothing in either mode, at this state of the weights
    kUntried,       // trying them all takes too long, or no other value is allowed
  };
  struct HyperParameter {
    std::size_t group = 0;
    std::string name;
    Reach reach = Reach::kUntried;
  };
  struct Ops {
    int64_t recorded = 0;      // calls of the step
    int64_t needed = 0;        // of them, without views, which are made once, and what nobody reads
    int64_t instructions = 0;  // that a replay runs: without allocations, which are planned
    std::vector<std::pair<std::string, int64_t>> own_kernels{};  // of them, by kernels of duet's own
  };

  std::string mode;  // of the trainer; nothing is found out in eager mode
  bool captured = false;
  std::string reason;  // why it is not; empty if the obstacles say it
  std::vector<Obstacle> obstacles;
  std::vector<Split> splits;
  bool keeps_tensors = false;  // somebody keeps tensors of the step, so the host code of every step runs
  int64_t reads = 0;           // values that its host code reads back, compared before each replay
  std::string changes;         // what its host code did otherwise when it ran once more; empty: nothing
  std::string left_out;        // why the in-step code of hooks took no part; empty: it did
  std::vector<HyperParameter> hyper_parameters;
  Ops ops;
  int64_t bytes = 0;                   // that the captured step owns
  double replay_us = 0, eager_us = 0;  // best of a few runs

  // For people, in lines.
  std::string text() const;
};

const char* to_string(StepExplanation::Reach reach);

// The loss over the learning rate: BaseTrainer::find_lr().
struct LrCurve {
  std::vector<double> lr, loss;  // of each step; the loss is a running mean (0.98 of the mean before), bias-corrected
  std::optional<double> steepest{}, valley{};  // suggestions; none: too few points
};
// Where the loss falls most per lr, as Lightning's lr_find; in its longest falling stretch, as fastai's valley().
std::optional<double> steepest_descent(const std::vector<double>& lr, const std::vector<double>& loss);
std::optional<double> valley_of(const std::vector<double>& lr, const std::vector<double>& loss, int64_t num_training);

// Whether a loaded checkpoint's or this run's configured learning rates, weight decays and other numbers of the
// optimizer are used, where they differ. Schedules are this run's, over those numbers.
enum class HyperParametersFrom { kCheckpoint, kThisRun };

class EpochPlan;
class Evaluator;
class ForwardPasses;
class HookObserver;
class MicroBatchReader;
class RankSync;
class RunState;
class StepCode;
class StepExecutor;
class StepObserver;
class StepExecutors;
class TrainStep;

// The loop around the steps and its hook list, the same in both modes. A run is made of parts: TrainStep is what
// happens in a step, the StepExecutor how it is run (the mode), RunState what a resume needs, the Evaluator passes over
// other data.
// Its many members are the calls that users make, which forward to those parts.
class BaseTrainer : public Stateful, private TrainerServices {
 public:
  ~BaseTrainer() override;

  // `priority` takes the place of the hook's own. Throws ConfigError as HookList::add does.
  template <class H>
  void add_hook(std::unique_ptr<H> hook, std::optional<int> priority = std::nullopt) {
    hooks_.add(std::move(hook), priority);
  }
  // Calls `callback` at `point`, as a hook of its own: several of one point and priority in the order they were given
  // in.
  void on(HookPoint point, std::function<void(TrainContext&)> callback, std::string name = "", int priority = kNormal) {
    hooks_.on(point, std::move(callback), std::move(name), priority);
  }
  // Its results are called "<prefix>/<name>", or "<name>" without a prefix. Two of one name are a ConfigError of the
  // evaluation.
  void add_metric(std::unique_ptr<Metric> metric, std::string prefix = "");
  // trainer.add_metric<Accuracy>(): a metric made of `arguments`.
  template <class M, class... Arguments>
  void add_metric(Arguments&&... arguments) {
    add_metric(std::make_unique<M>(std::forward<Arguments>(arguments)...));
  }

  // Trains to the limits of LoopOptions, from where this trainer stands (0, or a loaded state).
  // Validates on `validation` every val_interval steps if it is given. Several named datasets are one validation, in
  // turn, with results "<name>/<metric>": train(data, {{"clean", clean}, {"noisy", noisy}}). Throws ConfigError if
  // a name is invalid or used twice.
  void train(DataSource& data, DataSource* validation = nullptr);
  void train(DataSource& data, DataSource& validation) { train(data, &validation); }
  void train(DataSource& data, const NamedSources& validation);
  // Outside of training each is a run of its own: before_run first, after_run last.
  MetricValues validate(DataSource& data) { return validate(NamedSources{{"", data}}); }
  MetricValues validate(const NamedSources& data);
  MetricValues test(DataSource& data) { return test(NamedSources{{"", data}}); }
  MetricValues test(const NamedSources& data);
  // Calls `sink(batch, outputs)` for every batch, if there is one; hooks see them too.
  void predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink = nullptr);
  // Task::predict of one batch with the weights as they are now, without gradients and hooks: to act between the steps
  // of a loop of your own. The outputs by their names, predict(batch)["prediction"], are yours. The model evaluates
  // meanwhile, and has its training flags back afterwards. In graph mode it is captured and replayed as steps are;
  // validation and predictions over data likewise.
  Batch predict(const Batch& batch);

  // One step in a loop of your own, which decides when to end: limits are for hooks to read here, and a hook that
  // asks to stop sets stop_reason(). `batches` are its micro-batches. The results stay on the device and are valid
  // until the next step.
  //
  // The first step() opens a run: before_run and before_train, where schedules and checkpoints start. finish() closes
  // it: after_train and after_run, where the last checkpoint is saved. An error closes it too, as in train(), and the
  // next step() opens another one. Points of epochs do not occur.
  const StepResult& step(const Batch& batch);
  const StepResult& step(std::vector<Batch> batches);
  // Up to `count` steps on what `data` gives from where it stands, LoopOptions::accumulate micro-batches each: as if
  // step() were called with them, the same state and the same errors. How many were made: fewer where the data end, and
  // after one in which a hook asks to stop. result() is of the last one. As in any loop of your own the position of
  // `data` is yours to save (DataSource::state_dict) and to load: a checkpoint holds that of train() alone.
  int64_t step_many(DataSource& data, int64_t count);
  // Closes the run that step() opened, if one is open; train() does so first. The destructor runs no hooks: without
  // finish() the last checkpoint of a loop of your own is that of the last interval.
  void finish();

  // What graph mode would make of a step with this batch, or these micro-batches: everything that keeps it from being
  // captured, where hooks split it, what each hyper-parameter reaches, and what it costs. Nothing is trained: weights,
  // buffers, optimizer, gradients, the default generators and those that the step draws from, and counters are what
  // they were, bit by bit, and so is every other tensor that an op of the step writes. The host code of the task does
  // run, several times, and what it changes besides (numbers of its own, files) stays changed. Hooks at the split
  // points are not called. What was captured before is captured again when its next step comes.
  //
  // In a loop of your own call it where you like, or in before_train_iter, when hooks have everything that their
  // in-step code needs. Throws ConfigError with several ranks.
  StepExplanation explain(const Batch& batch);
  StepExplanation explain(std::vector<Batch> batches);

  // Trains on `data` while the learning rate rises, and puts everything back, random numbers and the position of `data`
  // too. Groups with other learning rates keep their ratio to the optimizer's, which is the one that is swept. Op by op
  // and without hooks in either mode. Of several ranks all call it.
  LrCurve find_lr(DataSource& data, const LrFinderOptions& options = {});

  // Results of the latest step; its loss alone after a load, nothing before the first one.
  const StepResult& result() const { return result_; }
  // Whether a limit is reached or a hook asked to stop.
  bool finished() const;
  const Progress& progress() const { return context_.progress; }
  const std::string& stop_reason() const { return context_.control.stop_reason; }
  RunOutcome outcome() const { return context_.control.outcome; }
  Mode mode() const { return parse_mode(context_.mode); }
  // How the steps to come are run, from the next one on: the same bits either way. Captured steps stay for the way
  // back. All ranks change together. Throws ConfigError for graph mode where there is none: an EagerTrainer made by
  // its own constructor (make_trainer() gives one that can), or an optimizer that no capture can hold.
  void set_mode(Mode mode) override;
  Task& task();
  HyperParameters& hyper_parameters();
  HookList& hooks() { return hooks_; }
  at::Device device() const;

  // Parameters and buffers alone, by the task's names; shared, not copied.
  StateDict weights() const;
  // As load_matching_weights() does. `step` is how many steps made them, if that is what hooks and logs shall go by.
  WeightsReport load_weights(const StateDict& weights, bool strict = true, std::optional<int64_t> step = std::nullopt);

  // Saves everything as the checkpoint <folder>/step-<step> and returns its path; deletes no other. Throws
  // CheckpointError, and what was saved before is then untouched.
  std::string save(const std::string& folder);
  // Goes on from a checkpoint: one that save() or CheckpointHook wrote, or the newest good one in a folder of them.
  // Returns its path. Rank 0 reads it, once, and the others get it from there. Throws CheckpointError, or what a hook
  // throws at after_load_checkpoint; then nothing has changed, on any rank.
  std::string load(const std::string& path, HyperParametersFrom numbers = HyperParametersFrom::kCheckpoint);
  // What its checkpoints say of this run. The trainer sets parent, when it loads one, and world_size.
  RunIdentity& identity() { return context_.identity; }
  const RunIdentity& identity() const { return context_.identity; }

  // Weights, buffers, optimizer, random state, data position, hooks, counters and the latest loss. Its tensors are the
  // live ones, not copies: the next step changes them. Clone what you keep.
  StateDict state_dict() const override;
  // Copies the state in. Throws CheckpointError for one that does not fit, hooks' parts included, or what a hook throws
  // at after_load_checkpoint; then nothing has changed. The data position is checked by the train() that gets the
  // source.
  void load_state_dict(const StateDict& state) override;

 protected:
  using MakeExecutor = std::function<std::unique_ptr<StepExecutor>(StepCode&, at::Device)>;
  // Throws ConfigError for options that cannot work. `make_graph` makes what runs steps in graph mode; null: there is
  // none.
  BaseTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, Mode mode, MakeExecutor make_graph);

  // Throws ConfigError if this trainer has no such mode.
  StepExecutor& executor(Mode mode) const;
  // What has run validations and predictions in graph mode.
  std::vector<StepExecutor*> evaluation_executors() const;

 private:
  enum class Run { kClosed, kOpen };
  enum class Turn { kStep, kStop, kExhausted };
  enum class Phase { kBetween, kBefore, kRunning };  // of the steps; before one its batch is read

  // A run, from its first hook to its last.
  void open_run(bool validates = true);
  std::exception_ptr close_run(std::exception_ptr error);
  void train_on(DataSource& data, const NamedSources& validation);
  void run_epochs(DataSource& data, const NamedSources& validation);
  void train_epoch(DataSource& data, const NamedSources& validation);
  void end_epoch(const NamedSources& validation);
  bool loop_ends() const;
  void roll_back_if_asked();
  Turn next_step(DataSource& data, MicroBatches& micro_batches);
  void run_step(const MicroBatches& micro_batches);
  void execute(const MicroBatches& micro_batches, StepObserver& observer);
  // Throws ConfigError if code of the running step calls this member: that step would go on with what is no longer
  // there.
  void check_between_steps(const char* member, Phase latest = Phase::kBetween) const;
  void sweep_lr(DataSource& data, const LrFinderOptions& options, LrCurve& curve);
  void manual_step(std::vector<Batch> batches);
  bool validation_is_due(bool epoch_ends) const;
  void validate_if_due(const NamedSources& validation, bool epoch_ends);  // the same, as a save may ask for it
  void settle();
  void settle_steps();
  UncheckedSteps own_unchecked() const;
  // Notes in the run's identity what graph mode left out. All ranks call it.
  void count_unchecked();
  void go_on_from(const LoadedCheckpoint& checkpoint);
  StateDict checkpoint_state() override;
  void call_hooks(HookPoint point) override { hooks_.call(point, context_); }
  NonFiniteOp trace_non_finite(const MicroBatches& micro_batches) override;
  struct Adoption {
    bool moves_data = true;  // false: data and random numbers go on as they are
    bool on_all_ranks = true;
  };
  // All of it or nothing: what has changed by then is taken back if it throws, but for a lost rank.
  void adopt(const StateDict& of_all_ranks, Adoption how);

  LoopOptions options_;
  std::unique_ptr<TrainStep> step_;
  HookList hooks_;
  TrainContext context_;
  std::unique_ptr<RankSync> ranks_;
  std::unique_ptr<RunState> state_;
  std::unique_ptr<EpochPlan> epochs_;
  std::unique_ptr<MicroBatchReader> reader_;
  std::unique_ptr<ForwardPasses> forward_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<HookObserver> observer_;
  std::unique_ptr<StepExecutors> executors_;  // go first: captured steps refer to the others
  StepExecutor* executor_ = nullptr;          // of the present mode
  StepResult result_;
  UncheckedSteps unchecked_before_;  // of the checkpoint that this run goes on from, less own_unchecked() at that time
  Run run_ = Run::kClosed;
  Phase phase_ = Phase::kBetween;
};

}  // namespace duet
