#include <duet/core/trainer.h>

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <duet/core/random.h>

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
      context_{rule_->task(), *rule_, *this, std::move(mode), options_.work_dir},
      points_(std::make_unique<Points>(*this)) {
  options_.validate();
  context_.max_updates = options_.max_updates;
  context_.max_epochs = options_.max_epochs;
  task().train(true);
}

BaseTrainer::~BaseTrainer() = default;

void BaseTrainer::add_metric(std::unique_ptr<Metric> metric) {
  require<ConfigError>(metric != nullptr, "[BaseTrainer] the metric is null; give one");
  metrics_.push_back(std::move(metric));
}

bool BaseTrainer::finished() const {
  return !context_.stop_reason.empty() || (options_.max_updates > 0 && context_.update >= options_.max_updates) ||
         (options_.max_epochs > 0 && context_.epoch >= options_.max_epochs);
}

namespace {

int64_t ceil_divide(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Runs the model. On the CPU LibTorch finds labels and tokens out of range; the same op may not look in another mode.
template <class Call>
auto with_checked_indices(const char* what, int64_t number, Call call) {
  try {
    return call();
  } catch (const c10::IndexError& error) {
    throw DataError(c10::str("[BaseTrainer] in ", what, " ", number, ": ", error.what_without_backtrace(),
                             " Expected labels and tokens that the model has a place for; correct the data, or the "
                             "model's num_classes or vocab_size"));
  }
}

// Text of an error for hooks and logs: LibTorch's own errors without their stack trace.
std::string text_of(const std::exception& error) {
  if (const auto* torch_error = dynamic_cast<const c10::Error*>(&error)) return torch_error->what_without_backtrace();
  return error.what();
}

}  // namespace

void BaseTrainer::train(DataSource& data, DataSource* validation) {
  require<ConfigError>(options_.max_updates > 0 || options_.max_epochs > 0,
                       "[LoopOptions] neither max_updates nor max_epochs is set; train() needs one, or call step()");
  context_.stop_reason.clear();
  context_.error.clear();
  context_.updates_per_epoch = ceil_divide(data.batches_per_epoch(), options_.accumulate);
  data_ = &data;
  if (!pending_data_state_.values().empty() || !pending_data_state_.tensors().empty()) {
    data.load_state_dict(pending_data_state_);
    pending_data_state_ = {};
  }

  std::exception_ptr first_error;
  const auto keep_first = [&](auto&& action) {
    try {
      action();
    } catch (const std::exception& error) {
      if (!first_error) {
        first_error = std::current_exception();
        context_.error = text_of(error);
      }
    }
  };
  keep_first([&] {
    hooks_.call(HookPoint::kBeforeRun, context_);
    hooks_.call(HookPoint::kBeforeTrain, context_);
    while (!finished()) train_epoch(data, validation);
  });
  if (first_error) keep_first([&] { hooks_.call(HookPoint::kOnException, context_); });
  keep_first([&] { hooks_.call(HookPoint::kAfterTrain, context_); });
  keep_first([&] { hooks_.call(HookPoint::kAfterRun, context_); });
  pending_data_state_ = data.state_dict();  // the source may be gone when this trainer's state is asked for
  data_ = nullptr;
  if (first_error) std::rethrow_exception(first_error);
}

void BaseTrainer::train_epoch(DataSource& data, DataSource* validation) {
  task().train(true);
  data.start_epoch(context_.epoch);
  if (context_.update_in_epoch == 0) hooks_.call(HookPoint::kBeforeTrainEpoch, context_);
  Window window;
  bool any = false;
  bool exhausted = false;
  while (!finished()) {
    exhausted = !fetch_window(data, window);
    if (exhausted) break;
    any = true;
    run_window(window);
    validate_if_due(validation, /*epoch_ends=*/false);
  }
  if (!any && context_.update_in_epoch == 0 && !finished()) {
    throw DataError("[BaseTrainer] the data source gave no batch for epoch " + std::to_string(context_.epoch) +
                    ", expected at least one; check its size, batch_size and drop_last");
  }
  // An epoch that a limit cut short is not over, unless it was used up at that very update.
  const bool whole = context_.updates_per_epoch > 0 && context_.update_in_epoch >= context_.updates_per_epoch;
  if (!exhausted && !whole) return;
  ++context_.epoch;
  context_.update_in_epoch = 0;
  hooks_.call(HookPoint::kAfterTrainEpoch, context_);
  validate_if_due(validation, /*epoch_ends=*/true);
}

bool BaseTrainer::fetch_window(DataSource& data, Window& window) {
  const auto start = std::chrono::steady_clock::now();
  window.batches.clear();
  while (static_cast<int64_t>(window.batches.size()) < options_.accumulate) {
    std::optional<Batch> batch = data.next();
    if (!batch) break;
    window.batches.push_back(std::move(*batch));
  }
  context_.data_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return !window.batches.empty();
}

// Weights are read from the batch where it still lies on the host; then it moves to the device.
void BaseTrainer::weigh(Window& window) {
  window.weights.clear();
  window.total = 0;
  for (Batch& batch : window.batches) {
    const double weight = task().weight(batch);
    if (!(weight > 0 && std::isfinite(weight))) {
      throw DataError(c10::str("[BaseTrainer] a micro-batch of update ", context_.update, " has weight ", weight,
                               ", expected a count > 0; check Task::weight and the batch"));
    }
    window.weights.push_back(weight);
    window.total += weight;
    for (const auto& item : batch.items()) {
      if (item.second.requires_grad()) {
        throw DataError("[BaseTrainer] batch tensor '" + item.first + "' requires a gradient, expected plain data; "
                        "detach() it, and call requires_grad_() on a copy inside training_step if the loss needs that");
      }
      if (item.second.device() != device_) {
        batch = batch.to(device_, /*non_blocking=*/true);
        break;
      }
    }
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
  weigh(window);
  const UpdateGuard guard(context_, window);
  hooks_.call(HookPoint::kBeforeTrainIter, context_);
  rule_->begin(window);
  output_ = with_checked_indices("update", context_.update, [&] { return run_update(window, *points_); });
  rule_->end();
  context_.output = &output_;
  hooks_.call(HookPoint::kAfterOptimizerStep, context_);
  ++context_.update;
  ++context_.update_in_epoch;
  hooks_.call(HookPoint::kAfterTrainIter, context_);
}

const UpdateOutput& BaseTrainer::step(const Batch& batch) {
  step_window_.batches.resize(1);
  step_window_.batches[0] = batch;
  run_window(step_window_);
  return output_;
}

const UpdateOutput& BaseTrainer::step(const std::vector<Batch>& window) {
  require<DataError>(!window.empty(), "[BaseTrainer] step() got no micro-batch; give at least one");
  step_window_.batches = window;
  run_window(step_window_);
  return output_;
}

void BaseTrainer::validate_if_due(DataSource* validation, bool epoch_ends) {
  if (validation == nullptr) return;
  const int64_t interval = options_.val_interval;
  const bool due = interval > 0 ? !epoch_ends && context_.update % interval == 0 : epoch_ends;
  if (!due) return;
  validate(*validation);
}

namespace {

struct EvaluationPoints {
  HookPoint before, before_epoch, before_iter, after_iter, after_epoch, after;
};

constexpr EvaluationPoints kVal = {HookPoint::kBeforeVal, HookPoint::kBeforeValEpoch, HookPoint::kBeforeValIter,
                                   HookPoint::kAfterValIter, HookPoint::kAfterValEpoch, HookPoint::kAfterVal};
constexpr EvaluationPoints kTest = {HookPoint::kBeforeTest, HookPoint::kBeforeTestEpoch, HookPoint::kBeforeTestIter,
                                    HookPoint::kAfterTestIter, HookPoint::kAfterTestEpoch, HookPoint::kAfterTest};
constexpr EvaluationPoints kPredict = {
    HookPoint::kBeforePredict,     HookPoint::kBeforePredictEpoch, HookPoint::kBeforePredictIter,
    HookPoint::kAfterPredictIter, HookPoint::kAfterPredictEpoch,  HookPoint::kAfterPredict};

// What a pass lends to hooks is taken back and the model trains again, however the pass ends.
class PassGuard {
 public:
  explicit PassGuard(TrainContext& context) : context_(context) { context_.task.train(false); }
  ~PassGuard() {
    context_.batch = nullptr;
    context_.outputs = nullptr;
    context_.task.train(true);
  }
  PassGuard(const PassGuard&) = delete;
  PassGuard& operator=(const PassGuard&) = delete;

 private:
  TrainContext& context_;
};

// Calls visit(batch) for every batch of one pass, between the points of `p`.
template <class Visit>
void pass(HookList& hooks, TrainContext& context, DataSource& data, at::Device device, const EvaluationPoints& p,
          const std::function<void()>& finish, Visit visit) {
  const at::NoGradGuard no_grad;
  const PassGuard guard(context);
  hooks.call(p.before, context);
  hooks.call(p.before_epoch, context);
  data.start_epoch(0);
  context.iter = 0;
  while (std::optional<Batch> host = data.next()) {
    const Batch batch = host->to(device, /*non_blocking=*/true);
    context.batch = &batch;
    hooks.call(p.before_iter, context);
    const NamedTensors outputs = with_checked_indices("evaluation batch", context.iter, [&] { return visit(batch); });
    context.outputs = &outputs;
    hooks.call(p.after_iter, context);
    context.outputs = nullptr;
    context.batch = nullptr;
    ++context.iter;
  }
  finish();
  hooks.call(p.after_epoch, context);
  hooks.call(p.after, context);
}

}  // namespace

MetricValues BaseTrainer::evaluate(DataSource& data, bool test) {
  MeanLoss mean_loss;
  for (const auto& metric : metrics_) metric->reset();
  context_.metrics.clear();
  const auto finish = [&] {
    context_.metrics = mean_loss.compute();
    for (const auto& metric : metrics_) context_.metrics.merge(metric->compute());
  };
  pass(hooks_, context_, data, device_, test ? kTest : kVal, finish, [&](const Batch& batch) {
    NamedTensors outputs = task().validation_step(batch);
    const double weight = task().weight(batch);
    mean_loss.add(batch, outputs, weight);
    for (const auto& metric : metrics_) metric->add(batch, outputs, weight);
    return outputs;
  });
  return context_.metrics;
}

MetricValues BaseTrainer::validate(DataSource& data) { return evaluate(data, /*test=*/false); }

MetricValues BaseTrainer::test(DataSource& data) { return evaluate(data, /*test=*/true); }

void BaseTrainer::predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink) {
  pass(hooks_, context_, data, device_, kPredict, [] {}, [&](const Batch& batch) {
    NamedTensors outputs = task().predict(batch);
    sink(batch, outputs);
    return outputs;
  });
}

}  // namespace duet
