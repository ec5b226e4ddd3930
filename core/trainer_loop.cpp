#include "distributed/communicator.h"
#include "base/error.h"
#include "base/detail/error_text.h"
#include "base/log.h"
#include "core/trainer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <chrono>
#include <exception>

namespace duet {

// The run around the steps: how it begins and ends, its epochs, when it validates.

bool BaseTrainer::finished() const { return !context_.control.stop_reason.empty() || limits_reached(); }

bool BaseTrainer::limits_reached() const {
  return (options_.max_steps > 0 && context_.progress.step >= options_.max_steps) ||
         (options_.max_epochs > 0 && context_.progress.epoch >= options_.max_epochs);
}

void BaseTrainer::open_run() {
  run_ = Run::kOpen;
  opened_at_ = std::chrono::steady_clock::now();
  context_.control.stop_reason.clear();
  stop_agreed_ = false;
  context_.control.stop_outcome = RunOutcome::kNone;
  context_.control.error.clear();
  context_.control.outcome = RunOutcome::kRunning;
  hooks_.call(HookPoint::kBeforeRun, context_);
  hooks_.call(HookPoint::kBeforeTrain, context_);
}

std::exception_ptr BaseTrainer::close_run(std::exception_ptr error) {
  if (run_ == Run::kClosed) return error;
  run_ = Run::kClosed;
  context_.control.outcome =
      !context_.control.stop_reason.empty() ? context_.control.stop_outcome : RunOutcome::kFinished;
  const auto tell_ranks = [&] {
    if (error && context_.communicator != nullptr) context_.communicator->fail(text_of(error));
  };
  tell_ranks();
  const auto tell = [&](HookPoint point) {
    if (error) context_.control.outcome = RunOutcome::kFailed;
    if (error && context_.control.error.empty()) context_.control.error = text_of(error);
    const std::exception_ptr another = caught([&] { hooks_.call(point, context_); });
    if (error || !another) return;
    error = another;
    tell_ranks();
  };
  if (error) tell(HookPoint::kOnException);
  tell(HookPoint::kAfterTrain);
  if (!error) error = caught([this] { meet_at_end(); });
  tell(HookPoint::kAfterRun);
  if (error) context_.control.outcome = RunOutcome::kFailed;
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
  require<ConfigError>(options_.max_steps > 0 || options_.max_epochs > 0,
                       "[LoopOptions] neither max_steps nor max_epochs is set; train() needs one, or call step()");
  finish();
  load_position(data);
  data_ = &data;
  context_.data = &data;
  std::exception_ptr error = caught([&] {
    context_.progress.steps_per_epoch = agree_on_epoch(options_.steps_per_epoch(data));
    plan_epochs(data);
    open_run();
    // A checkpoint is written before the validation of its step.
    validate_if_due(validation, /*epoch_ends=*/false);
    if (loop_ends() && epoch_is_used_up()) end_epoch(validation);
    validate_if_due(validation, /*epoch_ends=*/context_.progress.step_in_epoch == 0 && context_.progress.epoch > 0);
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

// A resumed run may be in an epoch whose first steps took other numbers of samples than those to come. -1: the source
// cannot tell.
int64_t BaseTrainer::steps_left(const DataSource& data) const {
  const int64_t done = context_.progress.step_in_epoch;
  int64_t batches = data.batches_left();
  if (batches < 0) return -1;
  if (done == 0) return context_.progress.steps_per_epoch;
  if (const int64_t limit = options_.limit_train_batches; limit > 0) {
    batches = std::clamp<int64_t>(limit - done * options_.accumulate, 0, batches);
  }
  return (batches + options_.accumulate - 1) / options_.accumulate;
}

// Sources that only estimate their length are taken by their word: a resumed run must plan what the unbroken one did.
void BaseTrainer::plan_epochs(const DataSource& data) {
  const int64_t length = context_.progress.steps_per_epoch;
  epoch_length_ = length;
  context_.progress.epoch_offset = 0;
  if (length <= 0) return;
  const int64_t left = agree_on_epoch(steps_left(data) + 1) - 1;
  if (left < 0) return;
  epoch_length_ = context_.progress.step_in_epoch + left;
  context_.progress.epoch_offset = context_.progress.step + left - (context_.progress.epoch + 1) * length;
  if (context_.progress.epoch_offset == 0 || limits_reached() || !context_.is_main) return;
  log_warning(c10::str("[BaseTrainer] the ", context_.progress.step, " steps so far are not those of epochs of ",
                       length, " steps, as they come from here on (another number of ranks, batch_size, accumulate or ",
                       "limit, or steps outside of epochs): schedules and hooks that count in epochs take all epochs ",
                       "for such; prefer to keep the global batch, or let them count in steps"));
}

void BaseTrainer::train_epoch(DataSource& data, DataSource* validation) {
  task().train(true);
  report("data");
  data.start_epoch(context_.progress.epoch);
  if (context_.progress.step_in_epoch == 0) hooks_.call(HookPoint::kBeforeTrainEpoch, context_);
  check_data(data, "training");
  MicroBatches micro_batches;
  bool any = false;
  Turn turn = Turn::kRun;
  while (!limits_reached() && (turn = next_micro_batches(data, micro_batches)) == Turn::kRun) {
    any = true;
    run_micro_batches(micro_batches);
    validate_if_due(validation, /*epoch_ends=*/false);
  }
  if (!any && context_.progress.step_in_epoch == 0 && !loop_ends()) {
    throw DataError("[BaseTrainer] the data source gave no batch for epoch " + std::to_string(context_.progress.epoch) +
                    ", expected at least one; check its size, batch_size and drop_last");
  }
  // An epoch that a limit cut short is not over, unless it was used up at that very step.
  if (turn == Turn::kExhausted || epoch_is_used_up()) end_epoch(validation);
}

bool BaseTrainer::epoch_is_used_up() const {
  return epoch_length_ > 0 && context_.progress.step_in_epoch >= epoch_length_;
}

void BaseTrainer::end_epoch(DataSource* validation) {
  ++context_.progress.epoch;
  context_.progress.step_in_epoch = 0;
  epoch_length_ = context_.progress.steps_per_epoch;
  hooks_.call(HookPoint::kAfterTrainEpoch, context_);
  validate_if_due(validation, /*epoch_ends=*/true);
}

BaseTrainer::Turn BaseTrainer::next_micro_batches(DataSource& data, MicroBatches& micro_batches) {
  const bool stops = !context_.control.stop_reason.empty();
  if (context_.communicator == nullptr) {
    if (stops) return Turn::kStop;
    return fetch_micro_batches(data, micro_batches) ? Turn::kRun : Turn::kExhausted;
  }
  report("data");
  const StateDict before = data.state_dict();
  micro_batches = {};
  if (!stops && fetch_micro_batches(data, micro_batches)) weigh(micro_batches);
  const Turn turn = agree_on_window(micro_batches);
  const bool has_position = !before.tensors().empty() || !before.values().empty();
  if (turn == Turn::kStop && has_position) data.load_state_dict(before);
  return turn;
}

bool BaseTrainer::fetch_micro_batches(DataSource& data, MicroBatches& micro_batches) {
  const auto start = std::chrono::steady_clock::now();
  micro_batches.batches.clear();
  int64_t wanted = options_.accumulate;
  if (const int64_t limit = options_.limit_train_batches; limit > 0) {
    wanted = std::min(wanted, limit - context_.progress.step_in_epoch * options_.accumulate);
  }
  while (static_cast<int64_t>(micro_batches.batches.size()) < wanted) {
    std::optional<Batch> batch = data.next();
    if (!batch) break;
    micro_batches.batches.push_back(std::move(*batch));
  }
  context_.step.data_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return !micro_batches.batches.empty();
}

bool BaseTrainer::validation_is_due(bool epoch_ends) const {
  if (validated_step_ == context_.progress.step) return false;
  const int64_t interval = options_.val_interval;
  if (interval == 0 || options_.val_by_epoch) {
    return epoch_ends && context_.progress.epoch % std::max<int64_t>(interval, 1) == 0;
  }
  if (epoch_ends || context_.progress.step == 0) return false;
  return context_.progress.step % interval == 0 || context_.progress.step == context_.progress.planned_steps();
}

void BaseTrainer::validate_if_due(DataSource* validation, bool epoch_ends) {
  if (validation == nullptr || !validation_is_due(epoch_ends)) return;
  agree_on_stop();
  if (context_.control.stop_outcome != RunOutcome::kInterrupted) validate(*validation);
}

}  // namespace duet
