#include "core/trainer.h"
#include <algorithm>
#include <functional>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/machine_load.h"
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "core/detail/epoch_plan.h"
#include "core/detail/evaluator.h"
#include "core/detail/forward_pass.h"
#include "core/detail/hook_observer.h"
#include "core/detail/micro_batch_reader.h"
#include "core/detail/param_scheduler_hook.h"
#include "core/detail/rank_sync.h"
#include "core/detail/run_state.h"
#include "core/detail/step_place.h"
#include "core/detail/train_step.h"

namespace duet {

BaseTrainer::BaseTrainer(std::unique_ptr<Task> task, const TrainerOptions& options, Mode mode, MakeExecutor make_graph)
    : options_((options.validate(), options.loop)),
      step_(std::make_unique<TrainStep>(std::move(task), options.resolved_device(), options)),
      context_{.task = step_->task(),
               .hyper_parameters = *step_,
               .trainer = *this,
               .work_dir = options.work_dir,
               .communicator = &step_->communicator()},
      ranks_(std::make_unique<RankSync>(*step_, context_)),
      state_(std::make_unique<RunState>(*step_, hooks_, context_)),
      epochs_(std::make_unique<EpochPlan>(options_, context_)),
      reader_(std::make_unique<MicroBatchReader>(step_->task(), step_->device())),
      forward_(std::make_unique<ForwardPasses>(
          step_->task(), ForwardPasses::Settings{.device = step_->device(),
                                                 .autocast = options.amp_eval ? options.amp : std::nullopt,
                                                 .make_graph = make_graph})),
      evaluator_(
          std::make_unique<Evaluator>(Evaluator::Parts{hooks_, context_, *reader_, *ranks_, *forward_}, options_)),
      observer_(std::make_unique<HookObserver>(hooks_, context_)),
      executors_(std::make_unique<StepExecutors>(*step_, step_->device(), std::move(make_graph))) {
  if (options_.deterministic) use_deterministic_kernels();
  set_mode(mode);
  context_.is_main = ranks_->is_main();
  context_.identity.world_size = step_->communicator().world_size();
  context_.step.parameters = &step_->parameters();
  context_.progress.max_steps = options_.max_steps;
  context_.progress.max_epochs = options_.max_epochs;
  // With one seed all ranks would draw the same dropout masks.
  if (!ranks_->is_main()) seed_all(rank_seed(default_seed(), step_->communicator().rank()));
  // As a model is that was loaded for use; what is in training in part stays so.
  if (std::ranges::none_of(step_->task().training_flags(), std::identity())) step_->task().train(true);
  if (!options.schedules.empty()) add_hook(std::make_unique<ParamSchedulerHook>(options.schedules));
}

BaseTrainer::~BaseTrainer() = default;

StepExecutor& BaseTrainer::executor(Mode mode) const { return executors_->in(mode); }

std::vector<StepExecutor*> BaseTrainer::evaluation_executors() const { return forward_->graph_executors(); }

// The run around the steps: how it begins and ends, its epochs, what one step is to hooks, when it validates.

void BaseTrainer::train(DataSource& data, DataSource* validation) {
  train_on(data, validation == nullptr ? NamedSources() : NamedSources{{"", *validation}});
}

void BaseTrainer::train(DataSource& data, const NamedSources& validation) {
  check_names(validation);
  train_on(data, validation);
}

void BaseTrainer::train_on(DataSource& data, const NamedSources& validation) {
  require<ConfigError>(options_.max_steps > 0 || options_.max_epochs > 0,
                       "[LoopOptions] neither max_steps nor max_epochs is set; train() needs one, or call step()");
  finish();
  if (ranks_->is_main()) warn_of_threads();
  state_->attach(data);
  std::exception_ptr error = caught([&] {
    epochs_->make(data, *ranks_);
    executor_->on_stream([&] {
      if (context_.progress.step_in_epoch > 0) task().train(true);  // before hooks, which may hold parts of it
      open_run(!validation.empty());
      run_epochs(data, validation);
      ranks_->agree_on_stop();
      settle();
      count_unchecked();
    });
  });
  error = close_run(error);
  // The source may be gone when this trainer's state is asked for.
  const std::exception_ptr no_position = caught([this] { state_->release(); });
  if (error || no_position) std::rethrow_exception(error ? error : no_position);
}

void BaseTrainer::run_epochs(DataSource& data, const NamedSources& validation) {
  const Progress& progress = context_.progress;
  if (progress.step == 0 && !validation.empty()) evaluator_->try_out(validation);
  // A resumed run makes up for what its checkpoint came before: a validation, the end of an epoch.
  validate_if_due(validation, /*epoch_ends=*/false);
  if (loop_ends() && epochs_->is_used_up()) end_epoch(validation);
  validate_if_due(validation, /*epoch_ends=*/progress.step_in_epoch == 0 && progress.epoch > 0);
  while (!loop_ends()) train_epoch(data, validation);
}

bool BaseTrainer::loop_ends() const { return epochs_->limits_reached() || ranks_->all_stop(); }

void BaseTrainer::train_epoch(DataSource& data, const NamedSources& validation) {
  const Progress& progress = context_.progress;
  const bool goes_on = progress.step_in_epoch > 0;
  if (!goes_on) task().train(true);
  ranks_->report("data");
  data.start_epoch(progress.epoch);
  if (goes_on) state_->begin_epoch_again();
  if (!goes_on) hooks_.call(HookPoint::kBeforeTrainEpoch, context_);
  step_->check_parameters();
  ranks_->check_data(data, "training");
  reader_->expect(data);
  MicroBatches micro_batches;
  bool any = false;
  Turn turn = Turn::kStep;
  while (!epochs_->limits_reached() && (turn = next_step(data, micro_batches)) == Turn::kStep) {
    if (!(micro_batches.total > 0)) {
      epochs_->leave_out_step();
      continue;
    }
    any = true;
    run_step(micro_batches);
    roll_back_if_asked();
    validate_if_due(validation, /*epoch_ends=*/false);
  }
  if (!any && progress.step_in_epoch == 0 && !loop_ends()) {
    throw DataError("[BaseTrainer] the data source gave no batch to learn from in epoch " +
                    std::to_string(progress.epoch) + ", expected at least one; check its size, batch_size and " +
                    "drop_last, and whether all labels are ignored");
  }
  // An epoch that a limit cut short is not over, unless it was used up at that very step.
  if (turn == Turn::kExhausted || epochs_->is_used_up()) end_epoch(validation);
}

void BaseTrainer::end_epoch(const NamedSources& validation) {
  ++context_.progress.epoch;
  context_.progress.step_in_epoch = 0;
  epochs_->next_epoch();
  context_.log.start_step();  // what hooks log from here on is of the epoch
  hooks_.call(HookPoint::kAfterTrainEpoch, context_);
  validate_if_due(validation, /*epoch_ends=*/true);
}

// Reads the next micro-batches, unless training stops. Of several ranks only all together know whether it does: one
// that has read already goes back, as one that has read some and is interrupted while it waits for more.
BaseTrainer::Turn BaseTrainer::next_step(DataSource& data, MicroBatches& micro_batches) {
  ranks_->report("data");
  micro_batches = {};
  RunControl& control = context_.control;
  control.look();
  bool stops = !control.stop_reason.empty();
  const int64_t count = epochs_->next_micro_batches();
  const bool may_go_back = !ranks_->is_single() || (count > 1 && !control.watchers.empty());
  const StateDict before = may_go_back ? data.state_dict() : StateDict();
  if (!stops) {
    std::optional<MicroBatches> all = reader_->read(data, count, context_.progress.step, control);
    stops = !all;
    if (all) micro_batches = std::move(*all);
    context_.step.data_seconds = reader_->seconds();
  }
  // Alone, what was read before a stop came is still trained on.
  const StepDecision decision = ranks_->before_step(micro_batches, /*stops_count=*/stops || !ranks_->is_single());
  if (decision.stopping_rank < 0) return decision.has_data ? Turn::kStep : Turn::kExhausted;
  if (!before.empty()) data.load_state_dict(before);
  return Turn::kStop;
}

void BaseTrainer::run_step(const MicroBatches& micro_batches) {
  Progress& progress = context_.progress;
  if (!(micro_batches.total > 0)) {
    throw DataError(c10::str("[BaseTrainer] all micro-batches of step ", progress.step,
                             " have weight 0, expected a count > 0 in one of them; check Task::weight and the data"));
  }
  ranks_->report("step");
  context_.step.micro_batches = &micro_batches;
  const auto taken_back = c10::make_scope_exit([this] {
    phase_ = Phase::kBetween;
    context_.step.result = nullptr;
    context_.step.micro_batches = nullptr;
  });
  phase_ = Phase::kBefore;
  context_.log.start_step();
  hooks_.call(HookPoint::kBeforeTrainIter, context_);
  phase_ = Phase::kRunning;
  execute(micro_batches, *observer_);
  state_->loss = result_.loss;
  context_.step.result = &result_;
  context_.log.put_results(result_);
  hooks_.call(HookPoint::kAfterOptimizerStep, context_);
  phase_ = Phase::kBetween;
  ++progress.step;
  ++progress.step_in_epoch;
  context_.control.look();
  ranks_->report("hooks");
  hooks_.call(HookPoint::kAfterTrainIter, context_);
  ranks_->step_done();
}

void BaseTrainer::execute(const MicroBatches& micro_batches, StepObserver& observer) {
  executor_->on_stream([&] {
    step_->begin(micro_batches);
    StepPlan plan = executor_->choose(micro_batches, observer);
    plan.path = ranks_->common_path(plan.path, executor_->ranks_need_same_path());
    result_ = with_place({"train step", context_.progress.step, *step_, micro_batches.batches}, [&] {
      return marking_suspects(context_.branch, [&] { return executor_->run(plan, micro_batches, observer); });
    });
    step_->end();
  });
}

bool BaseTrainer::validation_is_due(bool epoch_ends) const {
  const Progress& progress = context_.progress;
  if (state_->validated_step == progress.step) return false;
  const int64_t interval = options_.val_interval;
  const bool is_last = !epoch_ends && progress.step > 0 && progress.step == progress.planned_steps();
  if (interval == 0 || options_.val_by_epoch) {
    // A run that ends within its first epoch, which may be endless, is validated at its end.
    if (is_last && progress.epoch == 0) return !epochs_->is_used_up();
    return epoch_ends && progress.epoch % std::max<int64_t>(interval, 1) == 0;
  }
  return is_last || (!epoch_ends && progress.step > 0 && progress.step % interval == 0);
}

void BaseTrainer::validate_if_due(const NamedSources& validation, bool epoch_ends) {
  const bool is_asked = std::exchange(context_.control.validation_requested, false) && !epoch_ends &&
                        state_->validated_step != context_.progress.step;
  if (!validation.empty() && (is_asked || validation_is_due(epoch_ends))) {
    ranks_->agree_on_stop();
    if (context_.control.stop_outcome != RunOutcome::kInterrupted) validate(validation);
  }
  roll_back_if_asked();
}

void BaseTrainer::open_run(bool validates) {
  run_ = Run::kOpen;
  ranks_->start_run();
  context_.control = {};
  context_.control.outcome = RunOutcome::kRunning;
  context_.control.kind = RunKind::kTraining;
  context_.control.validates = validates;
  epochs_->watch_time();
  hooks_.call(HookPoint::kBeforeRun, context_);
  hooks_.call(HookPoint::kBeforeTrain, context_);
}

// Tells hooks of the end, and of `error` if there is one. Returns the first error, theirs included.
std::exception_ptr BaseTrainer::close_run(std::exception_ptr error) {
  if (run_ == Run::kClosed) return error;
  run_ = Run::kClosed;
  RunControl& control = context_.control;
  control.outcome = !control.stop_reason.empty() ? control.stop_outcome : RunOutcome::kFinished;
  control.watchers.clear();
  const auto fail = [&](const std::exception_ptr& found) {
    error = found;
    control.fail(text_of(error));
    step_->communicator().fail(text_of(error));
  };
  const auto tell = [&](HookPoint point) {
    const std::exception_ptr another = caught([&] { hooks_.call(point, context_); });
    if (another && !error) fail(another);
  };
  if (error) {
    fail(error);
    tell(HookPoint::kOnException);
  }
  tell(HookPoint::kAfterTrain);
  if (!error) {
    if (const std::exception_ptr lost = caught([this] { ranks_->end_run(); })) fail(lost);
  }
  tell(HookPoint::kAfterRun);
  control.kind = RunKind::kNone;
  return error;
}

void BaseTrainer::finish() {
  check_between_steps("train(), find_lr() or finish()");
  require<ConfigError>(!state_->is_attached(),
                       "[BaseTrainer] found finish() called within train(), as find_lr() and another train() do, "
                       "expected it after; to end the run ask for it with context.control.request_stop()");
  if (run_ == Run::kClosed) return forward_->settle();
  const std::exception_ptr found = caught([this] {
    ranks_->agree_on_stop();
    settle();
    count_unchecked();
  });
  if (const std::exception_ptr error = close_run(found)) std::rethrow_exception(error);
}

const StepResult& BaseTrainer::step(const Batch& batch) {
  return step(std::vector<Batch>(1, batch));  // a braced list would copy it twice
}

const StepResult& BaseTrainer::step(std::vector<Batch> batches) {
  check_between_steps("step()");
  require<DataError>(!batches.empty(), "[BaseTrainer] step() got no micro-batch; give at least one");
  const std::exception_ptr error = caught([&] { manual_step(std::move(batches)); });
  if (error) std::rethrow_exception(close_run(error));
  return result_;
}

int64_t BaseTrainer::step_many(DataSource& data, int64_t count) {
  const RunControl& control = context_.control;
  const auto is_asked_to_stop = [&] { return run_ == Run::kOpen && !control.stop_reason.empty(); };
  const bool goes_on = is_asked_to_stop();  // as a loop does that calls step() all the same
  reader_->expect(data);
  for (int64_t done = 0; done < count; ++done) {
    std::vector<Batch> batches = reader_->collect(options_.accumulate, [&data] { return data.next(); });
    if (batches.empty()) return done;
    step(std::move(batches));
    if (is_asked_to_stop() && !goes_on) return done + 1;
  }
  return std::max<int64_t>(count, 0);
}

void BaseTrainer::manual_step(std::vector<Batch> batches) {
  if (run_ == Run::kClosed) {
    epochs_->forget();
    step_->check_parameters();
    open_run();
  }
  MicroBatches micro_batches = reader_->prepare(std::move(batches), context_.progress.step);
  ranks_->before_step(micro_batches, /*stops_count=*/false);
  run_step(micro_batches);
  require<ConfigError>(context_.control.rollback_reason.empty(),
                       "[BaseTrainer] a hook asks to go back to a checkpoint, in a loop of your own, expected train(): "
                       "only that has a source to go on with");
  ranks_->agree_on_stop();
}

StepExplanation BaseTrainer::explain(const Batch& batch) { return explain(std::vector<Batch>(1, batch)); }

StepExplanation BaseTrainer::explain(std::vector<Batch> batches) {
  require<ConfigError>(ranks_->is_single(),
                       "[BaseTrainer] explain() found several ranks, expected one process; start the program without "
                       "a launcher");
  const MicroBatches micro_batches = reader_->prepare(std::move(batches), context_.progress.step);
  require<DataError>(micro_batches.total > 0,
                     "[BaseTrainer] explain() got no micro-batch with a weight above 0; give at least one");
  StepExplanation explanation = with_place({"train step", context_.progress.step, *step_, micro_batches.batches},
                                           [&] { return executor_->explain(*step_, micro_batches, *observer_); });
  explanation.mode = context_.mode;
  for (const HookPoint point : {HookPoint::kAfterBackward, HookPoint::kBeforeOptimizerStep}) {
    StepExplanation::Split split{to_string(point), {}};
    for (const HookPlace& place : hooks_.places(point)) split.hooks.push_back(place.name);
    if (!split.hooks.empty()) explanation.splits.push_back(std::move(split));
  }
  return explanation;
}

MetricValues BaseTrainer::validate(const NamedSources& data) {
  check_names(data);
  if (run_ == Run::kOpen) settle_steps();  // for what is saved after it: layers are in another mode then
  const bool in_train = state_->is_attached();
  // A pass that has no results is made up for by a resume, from where this one began.
  std::optional<StateBeforeEvaluation> before;
  if (in_train) before.emplace(step_->task());
  evaluator_->evaluate(data, RunKind::kValidation, [&] {
    before.reset();
    if (in_train) state_->validated_step = context_.progress.step;
  });
  if (before && context_.control.is_interrupted()) before->put_back();
  return context_.evaluation.metrics;
}

MetricValues BaseTrainer::test(const NamedSources& data) {
  check_names(data);
  evaluator_->evaluate(data, RunKind::kTest);
  return context_.evaluation.metrics;
}

void BaseTrainer::predict(DataSource& data, const std::function<void(const Batch&, const NamedTensors&)>& sink) {
  evaluator_->predict(data, sink);
}

Batch BaseTrainer::predict(const Batch& batch) { return evaluator_->predict(batch); }

void BaseTrainer::add_metric(std::unique_ptr<Metric> metric, std::string prefix) {
  evaluator_->add_metric(std::move(metric), std::move(prefix));
}

bool BaseTrainer::finished() const { return !context_.control.stop_reason.empty() || epochs_->limits_reached(); }

NonFiniteOp BaseTrainer::trace_non_finite(const MicroBatches& micro_batches) {
  return step_->trace_non_finite(micro_batches);
}

Task& BaseTrainer::task() { return step_->task(); }

HyperParameters& BaseTrainer::hyper_parameters() { return *step_; }

at::Device BaseTrainer::device() const { return step_->device(); }

}  // namespace duet
