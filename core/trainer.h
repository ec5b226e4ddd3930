#pragma once

#include <array>
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

class EpochPlan;
class Evaluator;
class HookObserver;
class MicroBatchReader;
class RankSync;
class RunState;
class StepExecutor;
class TrainStep;

// The loop around the steps and its hook list, the same in both modes. A run is made of parts: TrainStep is what
// happens in a step, the StepExecutor how it is run (the mode), RunState what a resume needs, the Evaluator passes over
// other data.
class BaseTrainer : public Stateful {
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
  // Validates on `validation` every val_interval steps if it is given.
  void train(DataSource& data, DataSource* validation = nullptr);
  void train(DataSource& data, DataSource& validation) { train(data, &validation); }
  MetricValues validate(DataSource& data);
  MetricValues test(DataSource& data);
  // Calls `sink(batch, outputs)` for every batch, if there is one; hooks see them too.
  void predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink = nullptr);

  // One step in a loop of your own, which decides when to end: limits are for hooks to read here, and a hook that
  // asks to stop sets stop_reason(). `batches` are its micro-batches. The results stay on the device and are valid
  // until the next step.
  //
  // The first step() opens a run: before_run and before_train, where schedules and checkpoints start. finish() closes
  // it: after_train and after_run, where the last checkpoint is saved. An error closes it too, as in train(), and the
  // next step() opens another one. Points of epochs do not occur.
  const StepResult& step(const Batch& batch);
  const StepResult& step(std::vector<Batch> batches);
  // Closes the run that step() opened, if one is open; train() does so first. The destructor runs no hooks: without
  // finish() the last checkpoint of a loop of your own is that of the last interval.
  void finish();

  // Results of the latest step; its loss alone after a load, nothing before the first one.
  const StepResult& result() const { return result_; }
  // Whether a limit is reached or a hook asked to stop.
  bool finished() const;
  const Progress& progress() const { return context_.progress; }
  const std::string& stop_reason() const { return context_.control.stop_reason; }
  RunOutcome outcome() const { return context_.control.outcome; }
  const std::string& mode() const { return context_.mode; }
  // How the steps to come are run, from the next one on: the same bits either way. Captured steps stay for the way
  // back. All ranks change together. Throws ConfigError for graph mode where there is none: an EagerTrainer made by
  // its own constructor (make_trainer() gives one that can), or an optimizer that no capture can hold.
  void set_mode(Mode mode);
  Task& task();
  HyperParameters& hyper_parameters();
  HookList& hooks() { return hooks_; }
  at::Device device() const;

  // Parameters and buffers alone, by the task's names; shared, not copied.
  StateDict weights() const;
  // Throws CheckpointError that lists every missing, unknown or differing name; then nothing has changed. `step` is
  // how many steps made them, if that is what hooks and logs shall go by.
  void load_weights(const StateDict& weights, std::optional<int64_t> step = std::nullopt);

  // Saves everything as the checkpoint <folder>/step-<step> and returns its path; deletes no other. Throws
  // CheckpointError, and what was saved before is then untouched.
  std::string save(const std::string& folder);
  // Goes on from a checkpoint: one that save() or CheckpointHook wrote, or the newest good one in a folder of them.
  // Throws CheckpointError; then nothing has changed.
  void load(const std::string& path);

  // Weights, buffers, optimizer, random state, data position, hooks, counters and the latest loss. Its tensors are the
  // live ones, not copies: the next step changes them. Clone what you keep.
  StateDict state_dict() const override;
  // Copies the state in. Throws CheckpointError for one that does not fit, hooks' parts included; then nothing has
  // changed. The data position is checked by the train() that gets the source.
  void load_state_dict(const StateDict& state) override;

 protected:
  using MakeExecutor = std::function<std::unique_ptr<StepExecutor>(TrainStep&, at::Device)>;
  // Throws ConfigError for options that cannot work. `make_graph` makes what runs steps in graph mode; null: there is
  // none.
  BaseTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, Mode mode, MakeExecutor make_graph);

  // Throws ConfigError if this trainer has no such mode.
  StepExecutor& executor(Mode mode) const;

 private:
  enum class Run { kClosed, kOpen };
  enum class Turn { kStep, kStop, kExhausted };

  // A run, from its first hook to its last.
  void open_run();
  std::exception_ptr close_run(std::exception_ptr error);
  void run_epochs(DataSource& data, DataSource* validation);
  void train_epoch(DataSource& data, DataSource* validation);
  void end_epoch(DataSource* validation);
  bool loop_ends() const;
  Turn next_step(DataSource& data, MicroBatches& micro_batches);
  void run_step(const MicroBatches& micro_batches);
  void step_in_own_loop(std::vector<Batch> batches);
  bool validation_is_due(bool epoch_ends) const;
  void validate_if_due(DataSource* validation, bool epoch_ends);
  void settle();
  StateDict checkpoint_state();

  LoopOptions options_;
  std::unique_ptr<TrainStep> step_;
  HookList hooks_;
  TrainContext context_;
  std::unique_ptr<RankSync> ranks_;
  std::unique_ptr<RunState> state_;
  std::unique_ptr<EpochPlan> epochs_;
  std::unique_ptr<MicroBatchReader> reader_;
  std::unique_ptr<Evaluator> evaluator_;
  std::unique_ptr<HookObserver> observer_;
  MakeExecutor make_graph_;
  mutable std::array<std::unique_ptr<StepExecutor>, 2> executors_;  // by mode; go first: captured steps refer to the others
  StepExecutor* executor_ = nullptr;                                // of the present mode
  StepResult result_;
  Run run_ = Run::kClosed;
};

}  // namespace duet
