#include "core/trainer.h"

#include <c10/util/StringUtil.h>
#include "base/detail/checked_indices.h"
#include "distributed/communicator.h"
#include "base/detail/device_copy.h"
#include "base/error.h"
#include "base/detail/error_text.h"
#include "base/log.h"

#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

namespace duet {

// Forwards the moments inside a step to the hooks that act there.
class BaseTrainer::Points : public StepObserver {
 public:
  explicit Points(BaseTrainer& trainer) : trainer_(trainer) {}

  bool splits() const override {
    return trainer_.hooks_.uses(HookPoint::kAfterBackward) || trainer_.hooks_.uses(HookPoint::kBeforeOptimizerStep);
  }
  int64_t version() const override { return static_cast<int64_t>(trainer_.hooks_.size()); }
  void after_backward(const StepView& context) override { call(HookPoint::kAfterBackward, context); }
  void before_optimizer_step(const StepView& context) override { call(HookPoint::kBeforeOptimizerStep, context); }
  void in_step(StepView& context) override {
    if (trainer_.hooks_.uses(HookPoint::kInStep)) trainer_.hooks_.in_step(context);
  }

 private:
  void call(HookPoint point, const StepView& context) {
    if (!trainer_.hooks_.uses(point)) return;
    trainer_.context_.step.result = &context.output;
    trainer_.hooks_.call(point, trainer_.context_);
    trainer_.context_.step.result = nullptr;
  }

  BaseTrainer& trainer_;
};

BaseTrainer::BaseTrainer(std::string mode, std::unique_ptr<StepRule> rule, at::Device device, LoopOptions options)
    : rule_(std::move(rule)),
      device_(device),
      options_(std::move(options)),
      context_{rule_->task(), *rule_, checkpoint_state_, std::move(mode), options_.work_dir},
      points_(std::make_unique<Points>(*this)),
      copy_(std::make_unique<DeviceCopy>(device)) {
  options_.validate();
  context_.step.parameters = &rule_->parameters();
  context_.progress.max_steps = options_.max_steps;
  context_.progress.max_epochs = options_.max_epochs;
  context_.communicator = rule_->communicator();
  context_.is_main = context_.communicator == nullptr || context_.communicator->is_main();
  if (!context_.is_main) draw_own_numbers();
  task().train(true);
}

BaseTrainer::~BaseTrainer() = default;

double BaseTrainer::next_plan(const MicroBatches& micro_batches) { return plan(micro_batches, *points_); }

void BaseTrainer::add_metric(std::unique_ptr<Metric> metric, std::string prefix) {
  require<ConfigError>(metric != nullptr, "[BaseTrainer] the metric is null; give one");
  metrics_.push_back({std::move(prefix), std::move(metric)});
}

namespace {

// A mean over nothing, such as a loss all of whose labels are ignored, is NaN.
void leave_out_weightless(MicroBatches& micro_batches) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < micro_batches.batches.size(); ++i) {
    if (micro_batches.weights[i] == 0) continue;
    if (kept != i) micro_batches.batches[kept] = std::move(micro_batches.batches[i]);
    micro_batches.weights[kept++] = micro_batches.weights[i];
  }
  micro_batches.weightless = static_cast<int64_t>(micro_batches.batches.size() - kept);
  micro_batches.batches.resize(kept);
  micro_batches.weights.resize(kept);
}

}  // namespace

// Weights are read from the batch where it still lies on the host; then it moves to the device.
void BaseTrainer::weigh(MicroBatches& micro_batches) {
  micro_batches.weights.clear();
  micro_batches.total = 0;
  for (Batch& batch : micro_batches.batches) {
    const double weight = task().weight(batch);
    if (!(weight >= 0 && std::isfinite(weight))) {
      throw DataError(c10::str("[BaseTrainer] a micro-batch of step ", context_.progress.step, " has weight ", weight,
                               ", expected a count >= 0; check Task::weight and the batch"));
    }
    micro_batches.weights.push_back(weight);
    micro_batches.total += weight;
    bool moves = false;
    for (const auto& item : batch.items()) {
      if (item.second.requires_grad()) {
        throw DataError("[BaseTrainer] batch tensor '" + item.first + "' requires a gradient, expected plain data; "
                        "detach() it, and call requires_grad_() on a copy inside training_step if the loss needs that");
      }
      moves = moves || item.second.device() != device_;
    }
    if (moves && weight > 0) batch = copy_->to_device(batch);
  }
  leave_out_weightless(micro_batches);
  if (micro_batches.weightless > 0 && !std::exchange(warned_of_weightless_, true)) {
    log_warning(c10::str("[BaseTrainer] ", micro_batches.weightless, " of the micro-batches of step ",
                         context_.progress.step,
                         " have weight 0 and are left out, as all others of this kind will be without a word; if that ",
                         "is not meant, check Task::weight and the data"));
  }
}

namespace {

// What a step lends to hooks is taken back however it ends.
class StepGuard {
 public:
  StepGuard(TrainContext& context, const MicroBatches& micro_batches) : context_(context) {
    context_.step.micro_batches = &micro_batches;
  }
  ~StepGuard() {
    context_.step.result = nullptr;
    context_.step.micro_batches = nullptr;
  }
  StepGuard(const StepGuard&) = delete;
  StepGuard& operator=(const StepGuard&) = delete;

 private:
  TrainContext& context_;
};

}  // namespace

void BaseTrainer::run_micro_batches(MicroBatches& micro_batches) {
  if (context_.communicator == nullptr) weigh(micro_batches);  // else the ranks have agreed on the total
  if (!(micro_batches.total > 0)) {
    throw DataError(c10::str("[BaseTrainer] all micro-batches of step ", context_.progress.step,
                             " have weight 0, expected a count > 0 in one of them; check Task::weight and the data"));
  }
  report("step");
  const StepGuard guard(context_, micro_batches);
  context_.log.start_step();
  hooks_.call(HookPoint::kBeforeTrainIter, context_);
  rule_->begin(micro_batches);
  output_ = with_checked_indices("step", context_.progress.step, [&] { return run_one_step(micro_batches, *points_); });
  rule_->end();
  context_.step.result = &output_;
  context_.log.put_results(output_);
  hooks_.call(HookPoint::kAfterOptimizerStep, context_);
  ++context_.progress.step;
  ++context_.progress.step_in_epoch;
  watch_time();
  report("hooks");
  hooks_.call(HookPoint::kAfterTrainIter, context_);
  if (context_.communicator != nullptr) context_.communicator->set_running(true);
}

void BaseTrainer::watch_time() {
  if (options_.max_seconds <= 0 || run_ != Run::kOpen) return;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - opened_at_;
  if (passed.count() >= options_.max_seconds) {
    context_.control.interrupt(c10::str("the time limit of ", options_.max_seconds, " s is reached"));
  }
}

const StepResult& BaseTrainer::step(const Batch& batch) {
  step_micro_batches_.batches.resize(1);
  step_micro_batches_.batches[0] = batch;
  return run_step();
}

const StepResult& BaseTrainer::step(const std::vector<Batch>& micro_batches) {
  require<DataError>(!micro_batches.empty(), "[BaseTrainer] step() got no micro-batch; give at least one");
  step_micro_batches_.batches = micro_batches;
  return run_step();
}

const StepResult& BaseTrainer::run_step() {
  const std::exception_ptr error = caught([this] {
    if (run_ == Run::kClosed) {
      context_.progress.steps_per_epoch = 0;  // a loop of the user's own has no epochs that this trainer knows of
      context_.progress.epoch_offset = 0;
      open_run();
    }
    if (context_.communicator != nullptr) {
      weigh(step_micro_batches_);
      agree_on_total(step_micro_batches_);
    }
    run_micro_batches(step_micro_batches_);
    agree_on_stop();
  });
  if (error) std::rethrow_exception(close_run(error));
  return output_;
}

}  // namespace duet
