// What of BaseTrainer is about its state: saved, loaded as one, gone back to.
#include <algorithm>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/detail/text.h"
#include "base/device.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/forward_pass.h"
#include "core/detail/hook_observer.h"
#include "core/detail/rank_sync.h"
#include "core/detail/run_state.h"
#include "core/detail/train_step.h"
#include "core/trainer.h"

namespace duet {

// Finds out what is still open, and throws if the steps so far may not be trusted.
void BaseTrainer::settle() {
  step_->check_parameters();
  step_->settle();
  settle_steps();
  forward_->settle();
}

void BaseTrainer::settle_steps() {
  marking_suspects(context_.branch, [this] { executor_->settle(*observer_); });
}

UncheckedSteps BaseTrainer::own_unchecked() const {
  const StepExecutor* const graph = executors_->made(Mode::kGraph);
  return graph == nullptr ? UncheckedSteps() : graph->unchecked();
}

void BaseTrainer::count_unchecked() {
  UncheckedSteps all{unchecked_before_.count, unchecked_before_.in_a_row, context_.progress.step};
  for (const UncheckedSteps& rank : step_->communicator().gather(own_unchecked())) {
    all.count += rank.count;
    all.in_a_row = std::max(all.in_a_row, rank.in_a_row);
    all.confirmed = std::min(all.confirmed, rank.confirmed);
  }
  context_.identity.unchecked = all;
}

void BaseTrainer::check_between_steps(const char* member, Phase latest) const {
  require<ConfigError>(phase_ <= latest,
                       c10::str("[BaseTrainer] found ", member,
                                " called within a step, by its loss or a hook before its end, "
                                "expected it between steps; call it at after_train_iter, or after step()"));
}

void BaseTrainer::set_mode(Mode mode) {
  check_between_steps("set_mode()", Phase::kBefore);
  StepExecutor& wanted = executor(mode);
  if (executor_ != nullptr && executor_ != &wanted) settle_steps();
  executor_ = &wanted;
  forward_->set_mode(mode);
  context_.mode = to_string(mode);
}

StateDict BaseTrainer::weights() const { return state_->weights(); }

WeightsReport BaseTrainer::load_weights(const StateDict& weights, bool strict, std::optional<int64_t> step) {
  check_between_steps("load_weights()", Phase::kBefore);
  WeightsReport report = load_matching_weights(task(), weights, strict);
  if (step) context_.progress.step = *step;
  return report;
}

StateDict BaseTrainer::state_dict() const { return state_->state_dict(); }

void BaseTrainer::load_state_dict(const StateDict& state) {
  check_between_steps("load_state_dict()");
  adopt(state, {.on_all_ranks = false});
}

// Other ranks, or hooks at after_load_checkpoint, may refuse what this rank's parts have taken by then.
void BaseTrainer::adopt(const StateDict& of_all_ranks, Adoption how) {
  Communicator& ranks = step_->communicator();
  const StateDict before = copy_of(state_->state_dict(), at::kCPU);
  bool moved = false;
  const auto tell = [this] {
    result_ = {state_->loss, {}, {}};
    executors_->state_replaced();
    hooks_.call(HookPoint::kAfterLoadCheckpoint, context_);
  };
  const auto load = [&] {
    StateDict own = own_rank_state(of_all_ranks, ranks);
    if (!how.moves_data) {
      own = own.without("random");  // which the order of the epochs to come is drawn from
      own.put("random", all_random_state());
    }
    state_->load_state_dict(own);
    tell();
    moved = how.moves_data;
    if (moved) state_->move_data(own.part("data"));
  };
  try {
    how.on_all_ranks ? run_on_all_ranks(ranks, load) : load();
    context_.branch = {.step = context_.progress.step};
  } catch (const PeerError&) {
    throw;
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    const std::exception_ptr another = caught([&] {
      state_->restore(before);
      if (moved) state_->move_data(before.part("data"));
      tell();  // the hook that threw may do so again
    });
    if (another) log_warning("[BaseTrainer] a load was taken back, which a hook refuses too: " + text_of(another));
    std::rethrow_exception(error);
  }
}

// The state that a checkpoint holds, of all ranks: hooks may prepare theirs first.
StateDict BaseTrainer::checkpoint_state() {
  check_between_steps("save()");
  ranks_->report("checkpoint");
  StateDict state;
  run_on_all_ranks(step_->communicator(), [&] {
    settle();
    hooks_.call(HookPoint::kBeforeSaveCheckpoint, context_);
    state = state_->state_dict();
  });
  count_unchecked();
  ranks_->warn_of_drift();
  add_rank_state(state, task(), step_->communicator());
  return state;
}

// The epoch goes on where its data stands: it has fewer steps of the run than the others. A save right then keeps what
// was left out left out, whenever the process ends.
void BaseTrainer::roll_back_if_asked() {
  if (context_.control.rollback_reason.empty()) return;
  Progress& progress = context_.progress;
  const Progress now = progress;
  const LoadedCheckpoint checkpoint = read_rollback(context_);
  const std::string reason = std::exchange(context_.control.rollback_reason, "");
  adopt(checkpoint.state, {.moves_data = false});
  go_on_from(checkpoint);
  context_.control.request_save();
  progress.epoch = now.epoch;
  progress.step_in_epoch = now.step_in_epoch;
  progress.epoch_offset += progress.step - now.step;
  RunControl& control = context_.control;
  control.times_rolled_back_to = control.rolled_back_to == progress.step ? control.times_rolled_back_to + 1 : 1;
  control.rolled_back_to = progress.step;
  if (!context_.is_main) return;
  const std::string text =
      c10::str("back from step ", now.step, " to ", checkpoint.path, ", and on with the data that comes now: ", reason,
               "; the data of steps ", progress.step + 1, " to ", now.step, " are left out");
  log_warning("[BaseTrainer] " + text);
  context_.log.text("rollback", text);
}

std::string BaseTrainer::save(const std::string& folder) {
  CheckpointStore store(folder, {.max_keep = -1});
  const std::string path = save_checkpoint(store, context_);
  tell_saved(path, context_);
  return path;
}

std::string BaseTrainer::load(const std::string& path, HyperParametersFrom numbers) {
  check_between_steps("load()");
  LoadedCheckpoint checkpoint = read_on_main(step_->communicator(), path);
  if (numbers == HyperParametersFrom::kThisRun) checkpoint.state = with_numbers_of(checkpoint.state, state_dict());
  adopt(checkpoint.state, {});
  go_on_from(checkpoint);
  return checkpoint.path;
}

void BaseTrainer::go_on_from(const LoadedCheckpoint& checkpoint) {
  context_.identity.parent = checkpoint.path;
  unchecked_before_ = {};
  count_unchecked();
  const UncheckedSteps saved = checkpoint.run.unchecked.value_or(UncheckedSteps());
  unchecked_before_ = {saved.count - context_.identity.unchecked->count, saved.in_a_row};
  count_unchecked();
}

}  // namespace duet
