#pragma once

#include "../data/data_source.h"
#include "hook_list.h"
#include "loop_options.h"
#include "../metrics/metric.h"
#include "train_context.h"
#include "step_rule.h"

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace duet {

class DeviceCopy;

// The loop, its counters and its hook list: the same for both modes. A subclass adds how one step runs.
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
  MetricValues validate(DataSource& data);
  MetricValues test(DataSource& data);
  // Calls `sink(batch, outputs)` for every batch, if there is one; hooks see them too.
  void predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink = nullptr);

  // One step in a loop of your own, which decides when to end: limits are for hooks to read here, and a hook that
  // asks to stop sets stop_reason(). `micro_batches` are the micro-batches of this step. The results stay on the device and
  // are valid until the next step.
  //
  // The first step() opens a run: before_run and before_train, where schedules and checkpoints start. finish() closes
  // it: after_train and after_run, where the last checkpoint is saved. An error closes it too, as in train(), and the
  // next step() opens another one. Points of epochs do not occur.
  const StepResult& step(const Batch& batch);
  const StepResult& step(const std::vector<Batch>& micro_batches);
  // Closes the run that step() opened, if one is open; train() does so first. The destructor runs no hooks: without
  // finish() the last checkpoint of a loop of your own is that of the last interval.
  void finish();

  // Results of the latest step; its loss alone after a load, nothing before the first one.
  const StepResult& output() const { return output_; }
  // Whether a limit is reached or a hook asked to stop.
  bool finished() const;
  int64_t step() const { return context_.progress.step; }
  int64_t epoch() const { return context_.progress.epoch; }
  const std::string& stop_reason() const { return context_.control.stop_reason; }
  RunOutcome outcome() const { return context_.control.outcome; }
  Task& task() { return rule_->task(); }
  HyperParameters& hyper_parameters() { return *rule_; }
  HookList& hooks() { return hooks_; }
  at::Device device() const { return device_; }

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
  BaseTrainer(std::string mode, std::unique_ptr<StepRule> rule, at::Device device, LoopOptions options);

  // How the next step will run, as a number that tells ways apart which ranks must not mix on `device`; 0 if all may.
  // If the ranks differ, all of them run it op by op: run_one_step() finds ranks_mix().
  virtual double plan(const MicroBatches& /*micro_batches*/, const StepObserver& /*points*/) { return 0; }
  bool ranks_mix() const { return ranks_mix_; }

  // Runs one step and returns its results.
  virtual StepResult run_one_step(const MicroBatches& micro_batches, StepObserver& points) = 0;

  StepRule& rule() { return *rule_; }
  const NamedTensors& parameters() const { return rule_->parameters(); }

 private:
  class Points;
  // The trainer's state as hooks and save() take it: before_save_checkpoint comes first.
  class CheckpointState : public Stateful {
   public:
    explicit CheckpointState(BaseTrainer& trainer) : trainer_(trainer) {}
    StateDict state_dict() const override;
    void load_state_dict(const StateDict& state) override;

   private:
    BaseTrainer& trainer_;
  };
  enum class Run { kClosed, kOpen };

  enum class Turn { kRun, kStop, kExhausted };

  void open_run();
  // Tells hooks of the end, and of `error` if there is one. Returns the first error, theirs included.
  std::exception_ptr close_run(std::exception_ptr error);
  const StepResult& run_step();
  void train_epoch(DataSource& data, DataSource* validation);
  bool limits_reached() const;
  int64_t steps_left(const DataSource& data) const;
  void plan_epochs(const DataSource& data);
  bool epoch_is_used_up() const;
  void end_epoch(DataSource* validation);
  bool fetch_micro_batches(DataSource& data, MicroBatches& micro_batches);
  Turn next_micro_batches(DataSource& data, MicroBatches& micro_batches);
  void weigh(MicroBatches& micro_batches);
  void run_micro_batches(MicroBatches& micro_batches);
  void watch_time();
  void validate_if_due(DataSource* validation, bool epoch_ends);
  bool validation_is_due(bool epoch_ends) const;
  MetricValues evaluate(DataSource& data, bool test);
  void check_weights(const StateDict& saved) const;
  // With the other ranks, all at the same place (trainer_ranks.cpp, trainer_ranks_state.cpp).
  struct Meeting;
  Meeting meet(double where, const MicroBatches& micro_batches);
  void adopt(const Meeting& meeting, MicroBatches& micro_batches);
  double next_plan(const MicroBatches& micro_batches);
  Turn agree_on_window(MicroBatches& micro_batches);
  void agree_on_total(MicroBatches& micro_batches);
  void agree_on_stop();
  void adopt_stop(int64_t rank);
  bool loop_ends() const;
  int64_t agree_on_epoch(int64_t steps);
  void sum_over_ranks(const std::vector<Metric*>& metrics);
  void check_data(const DataSource& data, const char* what);
  void warn_of_same_batches(const MicroBatches& micro_batches);
  void meet_at_end();
  void warn_of_drift();
  void add_state_of_ranks(StateDict& state);
  StateDict state_of_this_rank(const StateDict& saved) const;
  StateDict new_random_state(const StateDict& saved) const;
  void report(const char* phase);
  void draw_own_numbers();
  // Puts the source where a loaded state left off.
  void load_position(DataSource& data);

  std::unique_ptr<StepRule> rule_;
  at::Device device_;
  LoopOptions options_;
  HookList hooks_;
  struct NamedMetric {
    std::string prefix;
    std::unique_ptr<Metric> metric;
  };
  std::vector<NamedMetric> metrics_;
  CheckpointState checkpoint_state_{*this};
  TrainContext context_;
  Run run_ = Run::kClosed;
  std::chrono::steady_clock::time_point opened_at_{};
  StepResult output_;
  DataSource* data_ = nullptr;    // the source in use, for its position
  StateDict pending_data_state_;  // loaded before the source was known
  std::unique_ptr<Points> points_;
  std::unique_ptr<DeviceCopy> copy_;
  MicroBatches step_micro_batches_;
  int64_t epoch_length_ = 0;  // steps of the epoch that runs now; 0: unknown
  bool looked_at_batches_ = false, told_of_drift_ = false;
  bool ranks_mix_ = false;         // the plans for this step differ, or the layouts
  bool warned_of_weightless_ = false;
  bool stop_agreed_ = false;       // all ranks know that they stop
  int64_t validated_step_ = -1;  // the step after which the last validation by interval was complete
};

}  // namespace duet
