#include "graph/detail/graph_executor.h"
#include <algorithm>
#include <atomic>
#include <utility>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/op_tap.h"
#include "base/detail/stopwatch.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "base/log.h"
#include "core/detail/train_step.h"
#include "graph/explain/step_explainer.h"
#include "graph/guards/shadow_storage.h"
#include "graph/record/host_free_ops.h"

namespace duet {

using State = SignatureEntry::State;

StepExecutors::MakeGraph graph_executor_with(const GraphOptions& options) {
  return [options](StepCode& step, at::Device device) {
    check_options(options);
    return std::make_unique<GraphExecutor>(step, device, options);
  };
}

GraphExecutor::GraphExecutor(StepCode& step, at::Device device, const GraphOptions& options)
    : GraphExecutor(step, capture_method_for(device, options.fuse), options) {
  if (fallback_ == Fallback::kEager) return;
  const std::string reason = step.why_not_captured();
  require<ConfigError>(reason.empty(), "[GraphTrainer] " + reason);
  OpTap::self_check();
  register_host_free_ops();
  check_that_shadows_work();
}

namespace {

// Of all trainers in this process. Each refers to tensors, which can hide that somebody else does no longer.
std::atomic<int64_t>& captures() {
  static std::atomic<int64_t> count = 0;
  return count;
}

}  // namespace

GraphExecutor::GraphExecutor(StepCode& step, CaptureMethod method, const GraphOptions& options)
    : step_(step),
      method_(std::move(method)),
      fallback_(options.fallback),
      fuse_after_(options.fuse_after),
      cache_(options, method_.device != nullptr) {}

StepPlan GraphExecutor::choose(const MicroBatches& micro_batches, const StepObserver& observer) {
  const bool references_lost = check_addresses();
  const bool noticed = std::exchange(noticed_, false) || references_lost;
  const int64_t captured = captures();
  if (std::exchange(captures_seen_, captured) != captured) cache_.must_check_if_lost(/*may_be_hidden=*/true);
  SignatureEntry& entry = entry_for(micro_batches);
  if (entry.state == State::kCaptured && !entry.step->fits(observer)) {  // hooks in the step came or went
    entry.check.differed();
    entry.drop();
  }
  if (entry.may_retry()) entry.drop();
  if (entry.state == State::kCaptured && entry.step->segments().has_untried_kernels()) try_kernels(entry, observer);
  if (entry.state != State::kCaptured) {
    const bool may_record = entry.state == State::kSeen && fallback_ != Fallback::kEager;
    const bool records = may_record && entry.eager_steps >= method_.eager_steps + cache_.further_eager_steps();
    return {records ? StepPath::kRecord : StepPath::kEager, &entry};
  }
  if (entry.step->lost_outside() || noticed) cache_.must_check();
  // The first check shows whether replays need their host code.
  const bool waits = observer.postpones_checks() && (entry.step->was_checked() || !entry.check.due());
  const auto due = [waits](const auto& schedule) { return waits ? schedule.cannot_wait() : schedule.due(); };
  if (due(entry.verify)) return {StepPath::kReplayAndCompare, &entry};
  return {due(entry.check) ? StepPath::kCheckAndReplay : StepPath::kReplay, &entry};
}

SignatureEntry& GraphExecutor::entry_for(const MicroBatches& micro_batches) {
  const SignatureCache::Choice choice = cache_.choose(step_, micro_batches);
  if (!choice.gives_up.empty()) fall_back_unless_strict(*choice.entry, choice.gives_up);
  return *choice.entry;
}

// A weight that moved would be trained at its old place. Whether one was let go of: perhaps a module has another now.
bool GraphExecutor::check_addresses() {
  const auto [moved, references_lost] = storages_.look();
  if (moved.empty()) return references_lost;
  const std::string what = "[GraphTrainer] the memory or shape of '" + moved +
                           "' is another one than when the step was captured, which drops captured steps; change "
                           "weights in place (copy_) to keep them";
  for (SignatureEntry* entry : cache_.entries()) {
    if (entry->state != State::kCaptured || entry->record_again({}, /*too_often=*/false, 0)) continue;
    fall_back(*entry,
              "the memory or shape of '" + moved + "' changes from step to step; change weights in place (copy_)");
    entry->retry_later();
  }
  storages_.clear();
  require<GraphError>(fallback_ != Fallback::kStrict, what + ", or set graph.fallback to auto");
  if (told_.insert(what).second) log_warning(what);
  return false;
}

StepResult GraphExecutor::run(const StepPlan& plan, const MicroBatches& micro_batches, StepObserver& observer) {
  if (method_.device == nullptr) return execute(plan, micro_batches, observer);
  StepResult output;
  method_.device->run([&] { output = execute(plan, micro_batches, observer); });
  return output;
}

StepResult GraphExecutor::execute(const StepPlan& plan, const MicroBatches& micro_batches, StepObserver& observer) {
  SignatureEntry& entry =
      plan.recording != nullptr ? *static_cast<SignatureEntry*>(plan.recording) : entry_for(micro_batches);
  entry.last_use = ++steps_;
  steps_done_ = observer.steps_done();
  const bool is_ready = entry.step && entry.step->segments().is_ready();
  const auto looked_into = c10::make_scope_exit([&entry] { entry.noticed = false; });
  if (plan.path == StepPath::kReplay && is_ready) return replay(entry, micro_batches, observer);
  const auto refreshed = c10::make_scope_exit([this] { storages_.refresh_references(); });  // host code runs
  if (plan.path == StepPath::kEager) return run_eager(entry, micro_batches, observer);
  if (plan.path == StepPath::kRecord) return record(entry, micro_batches, observer);
  if (!is_ready) return capture(entry, micro_batches, observer);
  return plan.path == StepPath::kReplayAndCompare ? replay_and_compare(entry, micro_batches, observer)
                                                  : check_and_replay(entry, micro_batches, observer);
}

StepResult GraphExecutor::run_eager(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer) {
  ++entry.eager_steps;
  count_eager(entry);
  return step_.run(micro_batches, observer);
}

StepResult GraphExecutor::record(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer) {
  if (const std::string odd = StaticInputs::first_unsupported_input(micro_batches); !odd.empty()) {
    fall_back_unless_strict(
        entry, "the batch's '" + odd +
                   "' is sparse, quantized, nested, named, a lazy conjugate, of a subclass of Tensor or has "
                   "attributes of its own; give it as a plain dense tensor");
    return run_eager(entry, micro_batches, observer);
  }
  cache_.must_check_if_lost(/*may_be_hidden=*/false);  // the recording will refer to these tensors, too
  entry.step = std::make_unique<CapturedStep>(micro_batches, method_.make_replay());
  ++captures();
  ++captures_seen_;
  count_eager(entry);
  StepResult output = entry.step->record(step_, micro_batches, observer,
                                         {.strict = fallback_ == Fallback::kStrict, .changing = entry.changing});
  cache_.must_check_if_lost(/*may_be_hidden=*/false);
  if (cache_.add_written(entry.step->written(), micro_batches)) {
    entry.drop();  // batches that share this memory have a key of their own from here on
  } else if (entry.step->failure().empty()) {
    entry.state = State::kCaptured;
    entry.name_reads();
    entry.verify.restart();
    entry.check.restart(/*always=*/entry.step->needs_host_code());
    ++entry.recordings;
    cache_.evict(entry);
    storages_.write(all_tensors_of(step_));
    entry.step->lost_outside();  // from here on
    entry.step->return_memory();
  } else {
    const bool may_succeed_later = entry.step->may_succeed_later();
    fall_back(entry, entry.step->failure());
    if (may_succeed_later) entry.retry_later();
  }
  return output;
}

// Device graphs are made of a step that is then the first to be replayed.
StepResult GraphExecutor::capture(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer) {
  const Stopwatch time;
  const auto captured = entry.step->capture_and_replay(step_, micro_batches, observer);
  if (!captured) {
    fall_back_unless_strict(entry, entry.step->failure());
    return run_eager(entry, micro_batches, observer);
  }
  cache_.evict(entry);  // they take memory
  if (captured->outcome == TraceCheck::Outcome::kSame) {
    note_same(entry, time.seconds(), captured->replay_seconds);
  } else {
    count_eager(entry);
    note_difference(entry);
  }
  return captured->output;
}

StepResult GraphExecutor::replay(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer) {
  entry.verify.replayed(steps_done_);
  note_unchecked(entry);
  count_replay(entry);
  const bool is_timed = entry.check.wants_seconds();
  const std::optional<Stopwatch> time = is_timed ? std::optional(Stopwatch()) : std::nullopt;
  StepResult output = entry.step->replay(step_, micro_batches, observer);
  if (time) entry.check.note_replay(time->seconds());
  const std::string& replaced = entry.step->replayed().replaced_gradient();
  if (!replaced.empty()) note_replaced_gradient(entry, replaced);
  return output;
}

StepResult GraphExecutor::check_and_replay(SignatureEntry& entry, const MicroBatches& micro_batches,
                                           StepObserver& observer) {
  const Stopwatch time;
  CapturedStep::Checked checked = entry.step->check_and_replay(step_, micro_batches, observer);
  if (checked.outcome == TraceCheck::Outcome::kSame) {
    note_same(entry, time.seconds(), checked.replay_seconds);
  } else if (checked.outcome == TraceCheck::Outcome::kUnreadable) {
    checked.output = run_again(entry, micro_batches, observer);
  } else {
    count_eager(entry);
    const std::string& replaced = entry.step->replayed().replaced_gradient();
    replaced.empty() ? note_other_host_code(entry) : note_replaced_gradient(entry, replaced);
  }
  return checked.output;
}

// Nobody knows what the host code does; no op of it has run. What it has kept of its first run has no memory.
StepResult GraphExecutor::run_again(SignatureEntry& entry, const MicroBatches& micro_batches, StepObserver& observer) {
  const int64_t unchecked = entry.check.unchecked();
  const bool host_used_rng = entry.step->check().host_used_rng();
  const bool may_run = !entry.step->was_checked() || host_used_rng;
  std::string reason = entry.step->check().difference();
  reason += may_run ? ". Its host code ran twice in this step, to find that out"
                    : ", which it did not when it was captured. It has changed nothing, and cannot be run again since "
                      "its host code has run";
  if (unchecked > 0) reason += c10::str("; ", unchecked, " steps before it were not checked");
  entry.check.differed();
  fall_back(entry, std::move(reason));
  const std::string what = who(entry) + ": " + entry.report.reason;
  constexpr const char* kWayOut = "; set graph.fallback to eager, and resume from a checkpoint";
  if (!may_run) throw_doubt(what + kWayOut, unchecked, entry.check.unchecked_since());
  StepResult output;
  try {
    output = run_eager(entry, micro_batches, observer);
  } catch (const std::exception& error) {
    if (!is_shadow_access(error)) throw;
    throw GraphError(what + ". The second run reads what it has kept of its first run" + kWayOut);
  }
  if (!host_used_rng) throw_if_unchecked(entry, unchecked);
  return output;
}

void GraphExecutor::note_unchecked(SignatureEntry& entry) {
  entry.check.replayed(steps_done_);
  const int64_t in_a_row = entry.check.unchecked();
  ++entry.report.unchecked;
  ++unchecked_.count;
  for (int64_t* most : {&entry.report.unchecked_in_a_row, &unchecked_.in_a_row}) *most = std::max(*most, in_a_row);
}

UncheckedSteps GraphExecutor::unchecked() const {
  UncheckedSteps unchecked = unchecked_;
  for (const SignatureEntry* entry : cache_.entries()) {
    if (entry->state != State::kCaptured || entry->check.unchecked() == 0) continue;
    unchecked.confirmed = std::min(unchecked.confirmed, entry->check.unchecked_since());
  }
  return unchecked;
}

// The host code of a step that was replayed is the recorded one.
void GraphExecutor::note_same(SignatureEntry& entry, double seconds, double replay_seconds) {
  entry.verify.replayed(steps_done_);
  entry.report.check_seconds += seconds - replay_seconds;
  entry.check.checked(seconds, replay_seconds);
  if (entry.step->needs_host_code()) entry.check.check_always();
  entry.differing_in_a_row = 0;
  ++entry.report.checked;
  count_replay(entry);
}

// The step that differed ran op by op and is right. The recording still stands for others like it, unless there are
// none.
void GraphExecutor::note_difference(SignatureEntry& entry) {
  const std::string difference = entry.step->check().difference();
  const auto changed = entry.step->check().changed_tensor();
  // A tensor that was let go of just now was there in the steps before.
  if (changed && entry.noticed && !entry.step->check().differs_further()) entry.check.verified();
  const int64_t unchecked = entry.check.unchecked();
  entry.check.differed();
  if (++entry.report.differing == 1 && unchecked == 0) {
    log_warning(who(entry) + ": its host code does something else than when it was captured: " + difference +
                ". Such steps run op by op. A number that changes: keep it in a tensor, or name it in "
                "Task::graph_key");
  }
  const bool too_often = entry.report.differing - entry.differing_before_retry > 8 + entry.report.replays / 2;
  if (++entry.differing_in_a_row > 1 || too_often) {
    if (!entry.record_again(changed, too_often, method_.eager_steps)) {
      fall_back(entry, "its host code changes from step to step: " + difference +
                           ". Keep what changes in a tensor, or name it in Task::graph_key");
      entry.retry_later();
    }
  }
  entry.report.reason = "host code that changed: " + difference;
  throw_if_unchecked(entry, unchecked);
}

// The step itself ran op by op, on all ranks with the same sums; those before it may not have been right.
void GraphExecutor::throw_if_unchecked(const SignatureEntry& entry, int64_t unchecked) const {
  if (unchecked > 0 || fallback_ == Fallback::kStrict) {
    throw_if_doubtful(entry, unchecked, entry.check.unchecked_since());
  }
}

StepExplanation GraphExecutor::explain(TrainStep& step, const MicroBatches& micro_batches, StepObserver& observer) {
  StepExplanation explanation;
  if (fallback_ == Fallback::kEager) {
    explanation.reason = "graph.fallback is eager: every step runs op by op";
    return explanation;
  }
  const auto explained = [&] { explanation = explain_step(step, method_, micro_batches, observer); };
  method_.device == nullptr ? explained() : method_.device->run(explained);
  state_replaced();  // the optimizer's state was put back by a load
  storages_.refresh_references();
  return explanation;
}

// Asks the code of the step that ran last whether it does now what was recorded. That code runs under the inputs and
// state of its own step or not at all, and no replay counts as checked for it.
void GraphExecutor::settle(StepObserver& observer) {
  SignatureEntry* const last = cache_.latest();
  if (std::exchange(settled_, steps_) == steps_ || last == nullptr || !is_as_it_ran(*last, observer)) return;
  try {
    if (last->step->still_same(step_, observer)) return;
  } catch (const std::exception& error) {
    log_warning(c10::str(who(*last), ": its host code threw when it was run once more, to compare it: ",
                         one_line(error.what()), ". ", last->check.unchecked(), " replays stay unchecked"));
    return;
  }
  const bool host_used_rng = last->step->check().host_used_rng();
  last->check.differed();
  fall_back(*last, "its host code does something else than when it was captured: " + last->step->check().difference());
  if (!host_used_rng) throw_if_doubtful(*last, last->check.unchecked(), last->check.unchecked_since());
}

// As far as anybody can see; numbers of the user's own are not seen.
bool GraphExecutor::is_as_it_ran(const SignatureEntry& entry, const StepObserver& observer) {
  if (entry.state != State::kCaptured || entry.last_use != steps_ || entry.check.unchecked() == 0) return false;
  if (!entry.step->fits(observer) || !cache_.is_present(entry, step_) || !storages_.moved().empty()) return false;
  const bool is_rebound = entry.step->lost_outside();
  noticed_ = noticed_ || is_rebound;
  return !is_rebound;
}

// The step itself was run eager and is right; those before it may not have been.
void GraphExecutor::throw_if_doubtful(const SignatureEntry& entry, int64_t doubtful, int64_t since) const {
  const bool alone = step_.communicator().is_single(), trains = step_.kind() == CodeKind::kStep;
  if (alone && doubtful == 0 && fallback_ != Fallback::kStrict) return;
  std::string doubt;
  if (!alone || doubtful > 0) {
    doubt = c10::str(". Up to ", doubtful, trains ? " steps" : " batches",
                     " since the last check may have used an old value",
                     alone ? "" : ", and the other ranks may have got a wrong gradient", "; ",
                     trains ? "resume from a checkpoint before them" : "evaluate them again",
                     ", with graph.check every or graph.fallback eager");
  }
  throw_doubt(c10::str(who(entry), ": ", entry.report.reason, doubt), doubtful, since);
}

// Only steps leave something behind.
void GraphExecutor::throw_doubt(const std::string& what, int64_t doubtful, int64_t since) const {
  if (doubtful > 0 && step_.kind() == CodeKind::kStep) throw DoubtError(what, since);
  throw GraphError(what);
}

// Throws again when the step comes back.
void GraphExecutor::fall_back_unless_strict(SignatureEntry& entry, const std::string& reason) {
  require<GraphError>(fallback_ != Fallback::kStrict, who(entry) + ": " + reason + "; or set graph.fallback to auto");
  fall_back(entry, reason);
}

std::string GraphExecutor::who(const SignatureEntry& entry) const {
  return c10::str("[GraphTrainer] ", to_string(step_.kind()), " (", entry.report.signature, ")");
}

// By value: the reason may lie in the step that goes.
void GraphExecutor::fall_back(SignatureEntry& entry, std::string reason) {
  entry.give_up(std::move(reason), cache_.has_variants(entry));
  if (!told_.insert(entry.report.reason).second) return;
  log_warning(who(entry) + " runs eager: " + entry.report.reason);
}

std::string GraphExecutor::program_text() const {
  const SignatureEntry* latest = cache_.latest();
  return latest != nullptr && latest->step ? latest->step->replayed().text(step_.weights()) : std::string();
}

}  // namespace duet
