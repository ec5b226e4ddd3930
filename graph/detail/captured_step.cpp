#include "graph/detail/captured_step.h"
#include <algorithm>
#include <unordered_set>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include "base/detail/bits.h"
#include "base/detail/references.h"
#include "base/detail/stopwatch.h"
#include "base/error.h"
#include "graph/guards/shadow_storage.h"
#include "graph/record/address_watch.h"
#include "graph/record/host_reads.h"
#include "graph/record/op_recorder.h"

namespace duet {

namespace {

// Runs the hooks of a split point with the recorder paused, and marks the place.
class RecordingObserver : public ForwardingObserver {
 public:
  RecordingObserver(StepObserver& inner, OpRecorder& recorder) : ForwardingObserver(inner), recorder_(recorder) {}

  // Whether a hook has put other gradients in place; at another step it may leave them.
  bool replaces_gradients() const { return replaces_; }

 private:
  void at_split(SplitPoint point, const StepView& view, const std::function<void()>& hooks) override {
    if (!splits()) return;
    std::vector<const void*> addresses;
    for (const auto& parameter : view.parameters) addresses.push_back(address(parameter.second.grad()));
    recorder_.add_split(point);
    recorder_.pause();
    hooks();
    recorder_.resume();
    for (std::size_t i = 0; i < addresses.size(); ++i) {
      if (address(view.parameters[i].second.grad()) == addresses[i]) continue;
      replaces_ = true;
      recorder_.fail("a hook put another tensor in the place of the gradient of '" + view.parameters[i].first +
                     "'; change the gradient in place (copy_, mul_, ...)");
    }
  }
  static const void* address(const at::Tensor& tensor) { return tensor.defined() ? tensor.const_data_ptr() : nullptr; }

  OpRecorder& recorder_;
  bool replaces_ = false;
};

// Why a step may not be replayed that gave one of TrainStep's tensors other memory; empty if none did.
std::string replaced_tensor(const NamedTensors& before, const NamedTensors& after) {
  for (std::size_t i = 0; i < before.size() && i < after.size(); ++i) {
    const at::Tensor& a = before[i].second;
    const at::Tensor& b = after[i].second;
    if (a.has_storage() && b.has_storage() &&
        a.storage().unsafeGetStorageImpl() != b.storage().unsafeGetStorageImpl()) {
      return "'" + after[i].first +
             "' is replaced by another tensor within the step; change it in place (copy_, lerp_)";
    }
  }
  return {};
}

// Tells of the split points while host code is checked.
class CheckingObserver : public ForwardingObserver {
 public:
  CheckingObserver(StepObserver& inner, TraceCheck& check) : ForwardingObserver(inner), check_(check) {}

 private:
  void at_split(SplitPoint point, const StepView& view, const std::function<void()>& hooks) override {
    if (splits()) check_.split(point, view.parameters, hooks);
  }

  TraceCheck& check_;
};

// The code inside the step has run. What it has thrown, if anything, it throws again in its place.
class ThrownInStep : public ForwardingObserver {
 public:
  ThrownInStep(StepObserver& inner, std::exception_ptr thrown)
      : ForwardingObserver(inner), thrown_(std::move(thrown)) {}

  void in_step(StepView& view) override {
    if (thrown_) std::rethrow_exception(thrown_);
    ForwardingObserver::in_step(view);
  }

 private:
  void at_split(SplitPoint, const StepView&, const std::function<void()>& hooks) override { hooks(); }

  std::exception_ptr thrown_;
};

}  // namespace

std::vector<at::Tensor> results_of(const StepResult& output, const NamedTensors& parameters) {
  std::vector<at::Tensor> results;
  for (const auto& item : output.all()) results.push_back(item.second);
  for (const auto& parameter : parameters) {
    if (parameter.second.grad().defined()) results.push_back(parameter.second.grad());
  }
  return results;
}

NamedTensors all_tensors_of(const StepCode& step) {
  NamedTensors tensors = step.weights();
  for (auto& item : step.mutable_state()) tensors.push_back(std::move(item));
  return tensors;
}

StepResult CapturedStep::record(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                bool strict) {
  inputs_.fill(micro_batches);
  const NamedTensors state_before = step.mutable_state();
  MicroBatches lent = StaticInputs::lend(micro_batches);
  OpRecorder recorder(step.weights(), strict);
  recorder.watch_inputs(lent, micro_batches);
  recorder.tell_all(listener_);
  if (guards_reads()) recorder.guard_reads();
  recorder.name_outside(state_before);
  recorder.watch_addresses(step.weights());
  recorder.watch_addresses(state_before);
  RecordingObserver recording(observer, recorder);
  StepResult output;
  recorder.record([&] { output = step.run(lent, recording); });
  recorder.pause();
  inputs_.find_in(recorder.program().table, lent);
  const StaticInputs::UnusedLent unused = inputs_.unused(lent);
  lent = {};  // who refers to them now has kept them
  keeps_batch_ = unused.is_kept();
  const std::string replaced = replaced_tensor(state_before, step.mutable_state());
  if (!replaced.empty()) recorder.fail(replaced);
  for (const auto& [name, tensor] : output.log) {
    if (!tensor.defined() || recorder.program().table.find_storage(tensor) >= 0) continue;
    recorder.fail("'" + name + "' is a tensor that no op of it gives (from_blob); clone() it");
  }
  recorder.finish(results_of(output, step.parameters()));
  failure_ = recorder.failure();
  may_succeed_later_ = recording.replaces_gradients();
  written_ = recorder.program().written_ranges();
  if (!failure_.empty()) return output;
  auto program = std::make_shared<StepProgram>(recorder.program());
  const NamedTensors own = all_tensors_of(step);
  program->mark_changing(changing_, own);
  if (const std::string reason = refused_read(*program); !reason.empty()) {
    recorder.fail(reason);
    failure_ = reason;
    return output;
  }
  inputs_.take_place_in(program->table);
  recording_ = std::move(program);
  check_ = std::make_unique<TraceCheck>(recording_);
  if (!recording_->reads.empty()) reads_ = std::make_unique<ReadGuard>(*recording_, inputs_.micro_batches());
  for (const at::Tensor& tensor : recording_->changed_outside()) {
    outside_.emplace_back("a tensor that is not part of the model", tensor);
  }
  written_outside_ = recording_->written_outside();
  generators_ = recording_->generators();
  draws_ = std::ranges::any_of(recording_->ops, &StepProgram::Op::random);
  for (const StepProgram::Split& split : recording_->splits) split_points_.push_back(split.point);
  splits_ = observer.splits();
  version_ = observer.version();
  compile(recording_, step, output);
  watch_outside(own);
  return output;
}

void CapturedStep::watch_outside(const NamedTensors& known) {
  std::unordered_set<const void*> others;
  for (const auto& item : known) others.insert(item.second.storage().unsafeGetStorageImpl());
  for (const ValueTable::Value& value : recording_->table.values()) {
    const ValueTable::Storage& storage = recording_->table.storages()[value.storage];
    const bool outside = storage.external && !storage.contents && !storage.local && !storage.changes && !storage.input;
    if (!outside || !value.original.defined() || others.count(storage.strong.unsafeGetStorageImpl()) > 0) continue;
    watched_.push_back({value.original, value.original.storage().unsafeGetStorageImpl()});
  }
}

bool CapturedStep::lost_references() {
  bool lost = false;
  for (Outside& outside : watched_) {
    const std::size_t now = references_to(outside.tensor);
    lost = lost || now < outside.references || outside.tensor.storage().unsafeGetStorageImpl() != outside.storage;
    outside.references = now;
  }
  return lost;
}

// To be called once: who refers to the tensors that it lent has kept them.
TraceCheck::HostCode CapturedStep::host_code(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                             StepResult& output) {
  return [&, lent = StaticInputs::lend(micro_batches)]() mutable {
    inputs_.for_each_lent(lent, [this](int storage, const at::Tensor& tensor) { check_->lend(storage, tensor); });
    CheckingObserver checking(observer, *check_);
    output = step.run(lent, checking);
    const StaticInputs::UnusedLent unused = inputs_.unused(lent);
    lent = {};
    keeps_batch_ = keeps_batch_ || unused.is_kept();
    check_->bring_inputs_by([this, &micro_batches] { inputs_.fill(micro_batches); });
    const NamedTensors given = output.all(), captured = output_.all();
    for (std::size_t i = 0; i < given.size() && !captured.empty(); ++i) {
      const bool same = i < captured.size() && given[i].first == captured[i].first;
      if (!same) check_->rename(given[i].first);
    }
    return results_of(output, step.parameters());
  };
}

CapturedStep::Checked CapturedStep::check_and_replay(StepCode& step, const MicroBatches& micro_batches,
                                                     StepObserver& observer) {
  step.zero_grad();
  begin_replay();
  Checked checked;
  Stopwatch replay_time;
  next_segment_ = 0;
  checked.outcome = check_host_code(step, micro_batches, observer, checked.output);
  using Outcome = TraceCheck::Outcome;
  if (checked.outcome == Outcome::kLeft) {
    if (replaced_gradient_.empty()) handles_.hand_out(step.parameters());
    ThrownInStep thrown(observer, check_->thrown());
    checked.output = finish_by_op(step, split_points_[next_segment_ - 1], thrown);
    return checked;
  }
  if (checked.outcome == Outcome::kDiffers) return checked;
  step.zero_grad();
  checked.output = {};
  if (checked.outcome == Outcome::kUnreadable) return checked;
  was_checked_ = true;
  if (next_segment_ == 0) {
    replay_time = Stopwatch();
    inputs_.fill(micro_batches);  // host code may have written to the batch by address
  }
  checked.output = run_last(step, /*checked=*/true);
  checked.replay_seconds = replay_time.seconds();
  return checked;
}

std::optional<CapturedStep::Checked> CapturedStep::capture_and_replay(StepCode& step, const MicroBatches& micro_batches,
                                                                      StepObserver& observer) {
  inputs_.fill(micro_batches);
  handles_.clear();
  gradients_.clear();
  output_ = {};
  if (!capture(step, observer)) return {};
  failure_.clear();
  for (const auto& parameter : step.parameters()) gradients_.push_back(parameter.second.grad());
  was_checked_ = true;
  Checked checked{captured_the_recording_ ? TraceCheck::Outcome::kSame : TraceCheck::Outcome::kDiffers, {}};
  const Stopwatch replay_time;
  checked.output = run_segments(step, observer);
  checked.replay_seconds = replay_time.seconds();
  if (!captured_the_recording_) forget_capture();
  return checked;
}

StepResult CapturedStep::follow_host_code(StepCode& step, StepObserver& observer, const TraceCheck::RunOp& run_op) {
  StepResult output;
  captured_the_recording_ = check_->follow_capture(host_code(step, inputs_.micro_batches(), observer, output), run_op);
  return output;
}

TraceCheck::Outcome CapturedStep::check_host_code(StepCode& step, const MicroBatches& micro_batches,
                                                  StepObserver& observer, StepResult& output) {
  AddressWatch addresses;
  for (const Outside& outside : watched_) addresses.guard(outside.tensor);
  check_->pass_splits_by([&](std::size_t split) {
    fills_by_address_ = addresses.taken() || fills_by_address_;
    addresses.pause();
    const auto goes_on = c10::make_scope_exit([&] { addresses.resume(); });
    step.zero_grad();
    if (split == 0) inputs_.fill(micro_batches);
    next_segment_ = split + 1;
    return run_to_split(split, step, observer, /*checked=*/true);
  });
  check_->compare_reads_by([&](std::size_t read) {
    fills_by_address_ = addresses.taken() || fills_by_address_;
    addresses.pause();  // kernels take addresses
    const bool holds = reads_->holds(read, micro_batches);
    addresses.resume();
    return holds;
  });
  const auto forget = c10::make_scope_exit([this] {
    check_->compare_reads_by(nullptr);
    check_->pass_splits_by(nullptr);
  });
  const TraceCheck::Outcome outcome = check_->run(host_code(step, micro_batches, observer, output));
  fills_by_address_ = addresses.taken() || fills_by_address_;
  return outcome;
}

bool CapturedStep::run_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                StepResult& output) {
  inputs_.fill(micro_batches);
  return check_->follow(host_code(step, micro_batches, observer, output));
}

StepResult CapturedStep::replay_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer) {
  inputs_.fill(micro_batches);
  bring_bound_tensors();
  const OpSettingsGuard as_recorded(recording_->settings);  // the eager run may have ended with others
  return run_segments(step, observer);
}

std::vector<std::string> CapturedStep::differences_outside() const {
  for (const StepMemory::Bound& bound : check_->bound()) {
    if (written_outside_[bound.storage] && !same_bits(bytes_of(memory_of(bound.storage)), bytes_of(bound.memory))) {
      return {"a tensor that is not part of the model"};
    }
  }
  return {};
}

OpHashes CapturedStep::run_by_op(const MicroBatches& micro_batches) {
  inputs_.fill(micro_batches);
  const OpSettingsGuard as_recorded(recording_->settings);
  return duet::run_by_op(recording_);
}

bool CapturedStep::still_same(StepCode& step, StepObserver& observer) {
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : step.parameters()) gradients.push_back(parameter.second.grad());
  const auto back = c10::make_scope_exit([&] {
    for (std::size_t i = 0; i < gradients.size(); ++i) step.parameters()[i].second.mutable_grad() = gradients[i];
  });
  step.zero_grad();
  StepResult output;
  return check_->still_same(host_code(step, inputs_.micro_batches(), observer, output));
}

StepResult CapturedStep::replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer) {
  inputs_.fill(micro_batches);
  return run_segments(step, observer);
}

}  // namespace duet
