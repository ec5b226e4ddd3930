#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>
#include <ATen/Functions.h>
#include "base/error.h"
#include "core/detail/train_step.h"
#include "core/hook.h"
#include "core/task.h"
#include "core/train_context.h"
#include "core/trainer.h"

namespace duet {

// A task with one parameter; its loss is the mean of the batch's first tensor times it.
class FakeTask : public Task {
 public:
  NamedTensors named_parameters() const override { return {{"weight", weight_}}; }
  NamedTensors named_buffers() const override { return {}; }
  void train(bool on) override { training = on; }
  void to(at::Device device) override { weight_ = weight_.to(device); }
  StepOutput training_step(const Batch& batch) override {
    return {at::mul(batch.items().front().second.mean(), weight_).sum(), {}};
  }

  bool training = true;

 private:
  at::Tensor weight_ = at::ones({1}).requires_grad_(true);
};

// Learning rates of some groups, with a count of writes.
class FakeHyperParameters : public HyperParameters {
 public:
  explicit FakeHyperParameters(const std::vector<double>& rates = {0.1}) {
    for (const double rate : rates) groups_.push_back({{"lr", rate}});
  }
  std::size_t group_count() const override { return groups_.size(); }
  std::vector<std::string> names() const override {
    std::vector<std::string> all;
    for (const auto& group : groups_) {
      for (const auto& entry : group) {
        if (std::find(all.begin(), all.end(), entry.first) == all.end()) all.push_back(entry.first);
      }
    }
    return all;
  }
  // Another number of a group.
  void give(std::size_t group, const std::string& name, double value) { groups_.at(group)[name] = value; }
  double get(std::size_t group, const std::string& name) const override { return groups_.at(group).at(name); }
  void set(std::size_t group, const std::string& name, double value) override {
    groups_.at(group).at(name) = value;
    ++writes;
  }

  bool has(std::size_t group, const std::string& name) const override { return groups_.at(group).count(name) != 0; }
  void set_schedule(const std::string& name, Curve curve) override { curves[name] = std::move(curve); }
  void clear_schedule(const std::string& name) override { curves.erase(name); }
  int64_t applied() const override { return applied_steps; }

  // What an optimizer does before a step.
  void advance() {
    for (const auto& [name, curve] : curves) {
      for (std::size_t group = 0; group < groups_.size(); ++group) {
        if (has(group, name)) groups_[group].at(name) = curve(group, applied_steps);
      }
    }
    ++applied_steps;
  }

  int writes = 0;
  int64_t applied_steps = 0;
  std::map<std::string, Curve> curves;

 private:
  std::vector<std::map<std::string, double>> groups_;
};

// Trainer state with one tensor and one number.
class FakeState : public TrainerServices {
 public:
  StateDict state_dict() const override {
    StateDict state;
    state.set("model.weight", at::full({2}, value));
    state.set("trainer.value", StateValue(value));
    if (hook != nullptr) state.put("hooks." + hook->name(), hook->state_dict());
    return state;
  }
  StateDict checkpoint_state() override { return state_dict(); }
  void call_hooks(HookPoint /*point*/) override {}
  void set_mode(Mode /*mode*/) override {}
  NonFiniteOp trace_non_finite(const MicroBatches& /*micro_batches*/) override { return {}; }

  double value = 1.0;
  const Hook* hook = nullptr;  // whose state belongs to it
};

// A context and what it refers to, for hooks without a trainer.
struct FakeRun {
  FakeTask task;
  FakeHyperParameters hyper_parameters;
  FakeState state;
  NamedTensors parameters = task.named_parameters();
  StepResult output;
  TrainContext context{task, hyper_parameters, state, "eager", ""};

  explicit FakeRun(const std::vector<double>& rates = {0.1}) : hyper_parameters(rates) {
    context.step.parameters = &parameters;
  }
  FakeRun(const FakeRun&) = delete;
  FakeRun& operator=(const FakeRun&) = delete;

  // What the trainer does around one step whose loss is `loss`.
  void step(Hook& hook, const at::Tensor& loss) {
    hook.before_train_iter(context);
    hyper_parameters.advance();
    output.loss = loss;
    context.step.result = &output;
    context.log.put_results(output);
    ++context.progress.step;
    ++context.progress.step_in_epoch;
    hook.after_train_iter(context);
    context.step.result = nullptr;
    context.log.start_step();
  }
  void step(Hook& hook, double loss = 0) { step(hook, at::scalar_tensor(loss)); }

  void validation(Hook& hook, MetricValues metrics) {
    hook.before_val(context);
    context.evaluation.metrics = std::move(metrics);
    hook.after_val_epoch(context);
    hook.after_val(context);
  }
};

// Steps op by op on a FakeTask; the loss that it reports is the index of the step.
class FakeTrainer : public BaseTrainer {
 public:
  explicit FakeTrainer(LoopOptions loop, std::string work_dir = "", std::vector<Schedule> schedules = {})
      : BaseTrainer(std::make_unique<FakeTask>(), sgd(loop, std::move(work_dir), std::move(schedules)), Mode::kGraph,
                    [](StepCode& step, at::Device) { return std::make_unique<IndexAsLoss>(step); }) {}

 private:
  class IndexAsLoss : public StepExecutor {
   public:
    explicit IndexAsLoss(StepCode& step) : step_(step) {}
    StepPlan choose(const MicroBatches&, const StepObserver&) override { return {}; }
    StepResult run(const StepPlan&, const MicroBatches& micro_batches, StepObserver& observer) override {
      StepResult result = step_.run(micro_batches, observer);
      result.loss = at::scalar_tensor(static_cast<double>(steps_++));
      return result;
    }

   private:
    StepCode& step_;
    int64_t steps_ = 0;
  };

  static TrainerOptions sgd(const LoopOptions& loop, std::string work_dir, std::vector<Schedule> schedules) {
    TrainerOptions options;
    options.schedules = std::move(schedules);
    options.optimizer = SGD{.lr = 0.1};
    options.loop = loop;
    options.work_dir = std::move(work_dir);
    options.device = "cpu";
    return options;
  }
};

// `batches` batches of one sample per epoch.
class FakeData : public DataSource {
 public:
  explicit FakeData(int64_t batches) : batches_(batches) {}
  void start_epoch(int64_t /*epoch*/) override {
    if (!std::exchange(resumed_, false)) position_ = 0;
  }
  std::optional<Batch> next() override {
    if (position_ == batches_) return std::nullopt;
    ++position_;
    return Batch{{"x", at::ones({1})}};
  }
  int64_t batches_per_epoch() const override { return batches_; }
  StateDict state_dict() const override {
    StateDict state;
    state.set("position", StateValue(position_));
    return state;
  }
  void load_state_dict(const StateDict& state) override {
    position_ = state.integer("position");
    resumed_ = true;
  }

 private:
  int64_t batches_;
  int64_t position_ = 0;
  bool resumed_ = false;
};

}  // namespace duet
