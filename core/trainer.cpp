#include <duet/core/trainer.h>

#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <duet/core/checked_indices.h>
#include <duet/core/comm/communicator.h>
#include <duet/core/device_copy.h>
#include <duet/core/error.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <exception>

namespace duet {

void LoopOptions::validate() const {
  const auto check = [](const char* field, int64_t value, int64_t low) {
    if (value < low) {
      throw ConfigError(c10::str("[LoopOptions] ", field, " is ", value, ", expected an integer >= ", low));
    }
  };
  check("max_updates", max_updates, 0);
  check("max_epochs", max_epochs, 0);
  check("accumulate", accumulate, 1);
  check("val_interval", val_interval, 0);
  check("limit_train_batches", limit_train_batches, 0);
  check("limit_val_batches", limit_val_batches, 0);
  check("limit_test_batches", limit_test_batches, 0);
  check("limit_predict_batches", limit_predict_batches, 0);
  if (!(max_seconds >= 0 && std::isfinite(max_seconds))) {
    throw ConfigError(c10::str("[LoopOptions] max_seconds is ", max_seconds, ", expected seconds >= 0; 0 sets no limit"));
  }
}

int64_t LoopOptions::updates_per_epoch(const DataSource& data) const {
  int64_t batches = data.batches_per_epoch();
  if (limit_train_batches > 0) batches = batches > 0 ? std::min(batches, limit_train_batches) : limit_train_batches;
  return (batches + accumulate - 1) / accumulate;
}

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

bool BaseTrainer::finished() const { return !context_.stop_reason.empty() || limits_reached(); }

bool BaseTrainer::limits_reached() const {
  return (options_.max_updates > 0 && context_.update >= options_.max_updates) ||
         (options_.max_epochs > 0 && context_.epoch >= options_.max_epochs);
}

namespace {

// What `call` throws; null if it returns.
template <class Call>
std::exception_ptr caught(const Call& call) {
  try {
    call();
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// Text of an error for hooks and logs: LibTorch's own errors without their stack trace.
std::string text_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (const c10::Error& torch_error) {
    return torch_error.what_without_backtrace();
  } catch (const std::exception& other) {
    return other.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace

void BaseTrainer::open_run() {
  run_ = Run::kOpen;
  opened_at_ = std::chrono::steady_clock::now();
  context_.stop_reason.clear();
  stop_agreed_ = false;
  context_.stop_outcome = RunOutcome::kNone;
  context_.error.clear();
  context_.outcome = RunOutcome::kRunning;
  hooks_.call(HookPoint::kBeforeRun, context_);
  hooks_.call(HookPoint::kBeforeTrain, context_);
}

std::exception_ptr BaseTrainer::close_run(std::exception_ptr error) {
  if (run_ == Run::kClosed) return error;
  run_ = Run::kClosed;
  context_.outcome = !context_.stop_reason.empty() ? context_.stop_outcome : RunOutcome::kFinished;
  const auto tell_ranks = [&] {
    if (error && context_.communicator != nullptr) context_.communicator->fail(text_of(error));
  };
  tell_ranks();
  const auto tell = [&](HookPoint point) {
    if (error) context_.outcome = RunOutcome::kFailed;
    if (error && context_.error.empty()) context_.error = text_of(error);
    const std::exception_ptr another = caught([&] { hooks_.call(point, context_); });
    if (error || !another) return;
    error = another;
    tell_ranks();
  };
  if (error) tell(HookPoint::kOnException);
  tell(HookPoint::kAfterTrain);
  if (!error) error = caught([this] { meet_at_end(); });
  tell(HookPoint::kAfterRun);
  if (error) context_.outcome = RunOutcome::kFailed;
  return error;
}

void BaseTrainer::finish() {
  if (run_ == Run::kClosed) return;
  const std::exception_ptr found = caught([this] {
    agree_on_stop();
    rule_->settle();
  });
  if (const std::exception_ptr error = close_run(found)) std::rethrow_exception(error);
}

void BaseTrainer::train(DataSource& data, DataSource* validation) {
  require<ConfigError>(options_.max_updates > 0 || options_.max_epochs > 0,
                       "[LoopOptions] neither max_updates nor max_epochs is set; train() needs one, or call step()");
  finish();
  load_position(data);
  data_ = &data;
  context_.data = &data;
  std::exception_ptr error = caught([&] {
    context_.updates_per_epoch = agree_on_epoch(options_.updates_per_epoch(data));
    open_run();
    // A checkpoint is written before the validation of its update.
    validate_if_due(validation, /*epoch_ends=*/false);
    if (loop_ends() && epoch_is_used_up()) end_epoch(validation);
    validate_if_due(validation, /*epoch_ends=*/context_.update_in_epoch == 0 && context_.epoch > 0);
    while (!loop_ends()) train_epoch(data, validation);
    agree_on_stop();
    rule_->settle();
  });
  error = close_run(error);
  // The source may be gone when this trainer's state is asked for.
  const std::exception_ptr no_position = caught([&] { pending_data_state_ = data.state_dict(); });
  data_ = nullptr;
  context_.data = nullptr;
  if (error || no_position) std::rethrow_exception(error ? error : no_position);
}

void BaseTrainer::train_epoch(DataSource& data, DataSource* validation) {
  task().train(true);
  data.start_epoch(context_.epoch);
  if (context_.update_in_epoch == 0) hooks_.call(HookPoint::kBeforeTrainEpoch, context_);
  Window window;
  bool any = false;
  Turn turn = Turn::kRun;
  while (!limits_reached() && (turn = next_window(data, window)) == Turn::kRun) {
    any = true;
    run_window(window);
    validate_if_due(validation, /*epoch_ends=*/false);
  }
  if (!any && context_.update_in_epoch == 0 && !loop_ends()) {
    throw DataError("[BaseTrainer] the data source gave no batch for epoch " + std::to_string(context_.epoch) +
                    ", expected at least one; check its size, batch_size and drop_last");
  }
  // An epoch that a limit cut short is not over, unless it was used up at that very update.
  if (turn == Turn::kExhausted || epoch_is_used_up()) end_epoch(validation);
}

bool BaseTrainer::epoch_is_used_up() const {
  return context_.updates_per_epoch > 0 && context_.update_in_epoch >= context_.updates_per_epoch;
}

void BaseTrainer::end_epoch(DataSource* validation) {
  ++context_.epoch;
  context_.update_in_epoch = 0;
  hooks_.call(HookPoint::kAfterTrainEpoch, context_);
  validate_if_due(validation, /*epoch_ends=*/true);
}

BaseTrainer::Turn BaseTrainer::next_window(DataSource& data, Window& window) {
  const bool stops = !context_.stop_reason.empty();
  if (context_.communicator == nullptr) {
    if (stops) return Turn::kStop;
    return fetch_window(data, window) ? Turn::kRun : Turn::kExhausted;
  }
  report("data");
  const StateDict before = data.state_dict();
  window = {};
  if (!stops && fetch_window(data, window)) weigh(window);
  const Turn turn = agree_on_window(window);
  const bool has_position = !before.tensors().empty() || !before.values().empty();
  if (turn == Turn::kStop && window.fetched() > 0 && has_position) data.load_state_dict(before);
  return turn;
}

bool BaseTrainer::fetch_window(DataSource& data, Window& window) {
  const auto start = std::chrono::steady_clock::now();
  window.batches.clear();
  int64_t wanted = options_.accumulate;
  if (const int64_t limit = options_.limit_train_batches; limit > 0) {
    wanted = std::min(wanted, limit - context_.update_in_epoch * options_.accumulate);
  }
  while (static_cast<int64_t>(window.batches.size()) < wanted) {
    std::optional<Batch> batch = data.next();
    if (!batch) break;
    window.batches.push_back(std::move(*batch));
  }
  context_.data_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return !window.batches.empty();
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
    if (moves) batch = copy_->to_device(batch);
  }
  leave_out_weightless(window);
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

bool BaseTrainer::validation_is_due(bool epoch_ends) const {
  if (validated_update_ == context_.update) return false;
  const int64_t interval = options_.val_interval;
  if (interval == 0 || options_.val_by_epoch) {
    return epoch_ends && context_.epoch % std::max<int64_t>(interval, 1) == 0;
  }
  if (epoch_ends || context_.update == 0) return false;
  const int64_t last = planned_updates(context_.max_updates, context_.max_epochs, context_.updates_per_epoch);
  return context_.update % interval == 0 || context_.update == last;
}

void BaseTrainer::validate_if_due(DataSource* validation, bool epoch_ends) {
  if (validation == nullptr || !validation_is_due(epoch_ends)) return;
  agree_on_stop();
  if (context_.stop_outcome != RunOutcome::kInterrupted) validate(*validation);
}

}  // namespace duet
