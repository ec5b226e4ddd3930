#include <duet/core/trainer.h>

#include <c10/util/StringUtil.h>
#include <duet/core/checked_indices.h>
#include <duet/core/comm/communicator.h>
#include <duet/core/device_copy.h>
#include <duet/core/error.h>
#include <duet/core/error_text.h>
#include <duet/core/log.h>

#include <chrono>
#include <cmath>
#include <exception>
#include <utility>

namespace duet {

const char* to_string(RunOutcome outcome) {
  switch (outcome) {
    case RunOutcome::kNone: return "none";
    case RunOutcome::kRunning: return "running";
    case RunOutcome::kFinished: return "finished";
    case RunOutcome::kStopped: return "stopped";
    case RunOutcome::kInterrupted: return "interrupted";
    case RunOutcome::kFailed: return "failed";
  }
  return "";
}

// Forwards the moments inside an update to the hooks that act there.
class BaseTrainer::Points : public UpdatePoints {
 public:
  explicit Points(BaseTrainer& trainer) : trainer_(trainer) {}

  bool splits() const override {
    return trainer_.hooks_.uses(HookPoint::kAfterBackward) || trainer_.hooks_.uses(HookPoint::kBeforeOptimizerStep);
  }
  int64_t version() const override { return static_cast<int64_t>(trainer_.hooks_.size()); }
  void after_backward(const UpdateContext& context) override { call(HookPoint::kAfterBackward, context); }
  void before_optimizer_step(const UpdateContext& context) override { call(HookPoint::kBeforeOptimizerStep, context); }
  void in_update(UpdateContext& context) override {
    if (trainer_.hooks_.uses(HookPoint::kInUpdate)) trainer_.hooks_.in_update(context);
  }

 private:
  void call(HookPoint point, const UpdateContext& context) {
    if (!trainer_.hooks_.uses(point)) return;
    trainer_.context_.output = &context.output;
    trainer_.hooks_.call(point, trainer_.context_);
    trainer_.context_.output = nullptr;
  }

  BaseTrainer& trainer_;
};

BaseTrainer::BaseTrainer(std::string mode, std::unique_ptr<UpdateRule> rule, at::Device device, LoopOptions options)
    : rule_(std::move(rule)),
      device_(device),
      options_(std::move(options)),
      context_{rule_->task(), *rule_, checkpoint_state_, std::move(mode), options_.work_dir},
      points_(std::make_unique<Points>(*this)),
      copy_(std::make_unique<DeviceCopy>(device)) {
  options_.validate();
  context_.max_updates = options_.max_updates;
  context_.max_epochs = options_.max_epochs;
  context_.communicator = rule_->communicator();
  context_.is_main = context_.communicator == nullptr || context_.communicator->is_main();
  if (!context_.is_main) draw_own_numbers();
  task().train(true);
}

BaseTrainer::~BaseTrainer() = default;

double BaseTrainer::next_plan(const Window& window) { return plan(window, *points_); }

void BaseTrainer::add_metric(std::unique_ptr<Metric> metric, std::string prefix) {
  require<ConfigError>(metric != nullptr, "[BaseTrainer] the metric is null; give one");
  metrics_.push_back({std::move(prefix), std::move(metric)});
}

namespace {

// A mean over nothing, such as a loss all of whose labels are ignored, is NaN.
void leave_out_weightless(Window& window) {
  std::size_t kept = 0;
  for (std::size_t i = 0; i < window.batches.size(); ++i) {
    if (window.weights[i] == 0) continue;
    if (kept != i) window.batches[kept] = std::move(window.batches[i]);
    window.weights[kept++] = window.weights[i];
  }
  window.weightless = static_cast<int64_t>(window.batches.size() - kept);
  window.batches.resize(kept);
  window.weights.resize(kept);
}

}  // namespace

// Weights are read from the batch where it still lies on the host; then it moves to the device.
void BaseTrainer::weigh(Window& window) {
  window.weights.clear();
  window.total = 0;
  for (Batch& batch : window.batches) {
    const double weight = task().weight(batch);
    if (!(weight >= 0 && std::isfinite(weight))) {
      throw DataError(c10::str("[BaseTrainer] a micro-batch of update ", context_.update, " has weight ", weight,
                               ", expected a count >= 0; check Task::weight and the batch"));
    }
    window.weights.push_back(weight);
    window.total += weight;
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
  leave_out_weightless(window);
  if (window.weightless > 0 && !std::exchange(warned_of_weightless_, true)) {
    log_warning(c10::str("[BaseTrainer] ", window.weightless, " of the micro-batches of update ", context_.update,
                         " have weight 0 and are left out, as all others of this kind will be without a word; if that ",
                         "is not meant, check Task::weight and the data"));
  }
}

namespace {

// What an update lends to hooks is taken back however it ends.
class UpdateGuard {
 public:
  UpdateGuard(TrainContext& context, const Window& window) : context_(context) { context_.window = &window; }
  ~UpdateGuard() {
    context_.output = nullptr;
    context_.window = nullptr;
  }
  UpdateGuard(const UpdateGuard&) = delete;
  UpdateGuard& operator=(const UpdateGuard&) = delete;

 private:
  TrainContext& context_;
};

}  // namespace

void BaseTrainer::run_window(Window& window) {
  if (context_.communicator == nullptr) weigh(window);  // else the ranks have agreed on the total
  if (!(window.total > 0)) {
    throw DataError(c10::str("[BaseTrainer] all micro-batches of update ", context_.update,
                             " have weight 0, expected a count > 0 in one of them; check Task::weight and the data"));
  }
  report("update");
  const UpdateGuard guard(context_, window);
  context_.messages.clear_scalars();
  hooks_.call(HookPoint::kBeforeTrainIter, context_);
  rule_->begin(window);
  output_ = with_checked_indices("update", context_.update, [&] { return run_update(window, *points_); });
  rule_->end();
  context_.output = &output_;
  hooks_.call(HookPoint::kAfterOptimizerStep, context_);
  ++context_.update;
  ++context_.update_in_epoch;
  watch_time();
  report("hooks");
  hooks_.call(HookPoint::kAfterTrainIter, context_);
  if (context_.communicator != nullptr) context_.communicator->set_running(true);
}

void BaseTrainer::watch_time() {
  if (options_.max_seconds <= 0 || run_ != Run::kOpen) return;
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - opened_at_;
  if (passed.count() >= options_.max_seconds) {
    context_.interrupt(c10::str("the time limit of ", options_.max_seconds, " s is reached"));
  }
}

const UpdateOutput& BaseTrainer::step(const Batch& batch) {
  step_window_.batches.resize(1);
  step_window_.batches[0] = batch;
  return run_step();
}

const UpdateOutput& BaseTrainer::step(const std::vector<Batch>& window) {
  require<DataError>(!window.empty(), "[BaseTrainer] step() got no micro-batch; give at least one");
  step_window_.batches = window;
  return run_step();
}

const UpdateOutput& BaseTrainer::run_step() {
  const std::exception_ptr error = caught([this] {
    if (run_ == Run::kClosed) {
      context_.updates_per_epoch = 0;  // a loop of the user's own has no epochs that this trainer knows of
      context_.epoch_offset = 0;
      open_run();
    }
    if (context_.communicator != nullptr) {
      weigh(step_window_);
      agree_on_total(step_window_);
    }
    run_window(step_window_);
    agree_on_stop();
  });
  if (error) std::rethrow_exception(close_run(error));
  return output_;
}

}  // namespace duet
