#include "graph/detail/captured_step.h"
#include <algorithm>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <malloc.h>
#include "base/detail/bits.h"
#include "base/detail/stopwatch.h"
#include "base/error.h"
#include "graph/guards/shadow_storage.h"
#include "graph/guards/state_copies.h"
#include "graph/guards/storage_watch.h"
#include "graph/record/address_watch.h"
#include "graph/record/at_splits.h"
#include "graph/record/host_reads.h"
#include "graph/record/op_recorder.h"
#include "graph/record/step_results.h"
#include "graph/replay/cpu_program.h"

namespace duet {

namespace {

std::vector<const void*> addresses_of_gradients(const StepView& view) {
  std::vector<const void*> addresses;
  for (const auto& parameter : view.parameters) {
    const at::Tensor& gradient = parameter.second.grad();
    addresses.push_back(gradient.defined() ? gradient.const_data_ptr() : nullptr);
  }
  return addresses;
}

// Runs the hooks of a split point with the recorder paused, and marks the place. Whether one has put other gradients in
// place.
bool record_split(OpRecorder& recorder, SplitPoint point, const StepView& view, const std::function<void()>& hooks) {
  const std::vector<const void*> before = addresses_of_gradients(view);
  recorder.add_split(point);
  recorder.pause();
  hooks();
  recorder.resume();
  const std::vector<const void*> after = addresses_of_gradients(view);
  for (std::size_t i = 0; i < before.size(); ++i) {
    if (after[i] == before[i]) continue;
    recorder.fail({"a hook put another tensor in the place of the gradient of '" + view.parameters[i].first + "'",
                   "change the gradient in place (copy_, mul_, ...)"});
  }
  return after != before;
}

// The first of TrainStep's tensors that the step gave other memory; empty if none.
std::string replaced_tensor(const NamedTensors& before, const NamedTensors& after) {
  for (std::size_t i = 0; i < before.size() && i < after.size(); ++i) {
    const at::Tensor &a = before[i].second, &b = after[i].second;
    if (a.has_storage() && b.has_storage() && !a.is_alias_of(b)) return after[i].first;
  }
  return {};
}

// The code inside the step has run. What it has thrown, if anything, it throws again in its place.
class ThrownInStep : public AtSplits {
 public:
  ThrownInStep(StepObserver& inner, std::exception_ptr thrown)
      : AtSplits(inner, [](SplitPoint, const StepView&, const auto& hooks) { hooks(); }), thrown_(std::move(thrown)) {}

  void in_step(StepView& view) override {
    if (thrown_) std::rethrow_exception(thrown_);
    AtSplits::in_step(view);
  }

 private:
  std::exception_ptr thrown_;
};

}  // namespace

NamedTensors all_tensors_of(const StepCode& step) {
  NamedTensors tensors = step.weights();
  for (auto& item : step.mutable_state()) tensors.push_back(std::move(item));
  return tensors;
}

StepResult CapturedStep::record(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                const RecordOptions& options) {
  StaticInputs& inputs = replayed_.inputs();
  inputs.fill(micro_batches);
  const NamedTensors state_before = step.mutable_state();
  MicroBatches lent = StaticInputs::lend(micro_batches);
  OpRecorder recorder(step.weights(), options.strict);
  recorder.watch_inputs(lent, micro_batches);
  recorder.collect_all_obstacles(options.listener);
  if (replayed_.segments().guards_reads()) recorder.guard_reads();
  recorder.name_outside(state_before);
  recorder.watch_addresses(step.weights());
  recorder.watch_addresses(state_before);
  StorageWatch places;
  places.write(all_tensors_of(step));
  may_succeed_later_ = false;
  AtSplits recording(observer, [&](SplitPoint point, const StepView& view, const auto& hooks) {
    if (observer.splits()) may_succeed_later_ = record_split(recorder, point, view, hooks) || may_succeed_later_;
  });
  StepResult output;
  recorder.record([&] { output = step.run(lent, recording); });
  recorder.pause();
  inputs.find_in(recorder.program().table, lent);
  keeps_batch_ = inputs.let_go(lent);
  const std::string replaced = replaced_tensor(state_before, step.mutable_state());
  if (!replaced.empty()) {
    recorder.fail(
        {"'" + replaced + "' is replaced by another tensor within the step", "change it in place (copy_, lerp_)"});
  } else if (const std::string moved = places.moved(); !moved.empty()) {
    recorder.fail({"'" + moved + "' gets other memory or another shape within the step", "change it in place (copy_)"});
    may_succeed_later_ = true;
  }
  for (const auto& [name, tensor] : output.log) {
    if (!tensor.defined() || recorder.program().table.find_storage(tensor) >= 0) continue;
    recorder.fail({"'" + name + "' is a tensor that no op of it gives (from_blob)", "clone() it"});
  }
  recorder.finish(results_of(output, step.parameters()));
  written_ = recorder.program().written_ranges();
  if (recorder.failure().empty()) {
    auto program = std::make_shared<StepProgram>(recorder.program());
    program->mark_changing(options.changing, all_tensors_of(step));
    const std::optional<Obstacle> refused = refused_read(*program);
    if (refused) recorder.fail(*refused);
    splits_ = observer.splits();
    version_ = observer.version();
    if (!refused) trust(program, step, output);
  }
  if (failure_.empty()) failure_ = recorder.failure();
  return output;
}

void CapturedStep::trust(const std::shared_ptr<StepProgram>& program, StepCode& step, const StepResult& recorded) {
  replayed_.inputs().take_place_in(program->table);
  recording_ = program;
  check_ = std::make_unique<TraceCheck>(recording_);
  if (!recording_->reads.empty()) {
    reads_ = std::make_unique<ReadGuard>(*recording_, replayed_.inputs().micro_batches());
  }
  replayed_.compile(recording_, recorded, step.parameters());
  failure_ = replayed_.segments().failure();
  outside_.write(recording_->unknown_outside(all_tensors_of(step)));
}

void CapturedStep::return_memory() {
  constexpr std::size_t kMuch = std::size_t{1} << 23;
  CpuProgram* program = segments().cpu_program();
  const bool takes_much = program != nullptr && program->release_pages() >= kMuch;
  if (takes_much) malloc_trim(0);  // glibc keeps what became free below other memory
}

int64_t CapturedStep::bytes() const {
  return replayed_.inputs().bytes() + replayed_.segments().bytes() + (reads_ ? reads_->bytes() : 0);
}

bool CapturedStep::needs_host_code() const {
  return recording_->keeps_tensors() || recording_->reads_changing_tensors() || fills_by_address_ || keeps_batch_;
}

// To be called once: who refers to the tensors that it lent has kept them.
TraceCheck::HostCode CapturedStep::host_code(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                             StepResult& output) {
  return [&, lent = StaticInputs::lend(micro_batches)]() mutable {
    StaticInputs& inputs = replayed_.inputs();
    inputs.for_each_lent(lent, [this](int storage, const at::Tensor& tensor) {
      if (storage >= 0) check_->lend(storage, tensor);
    });
    AtSplits checking(observer, [&](SplitPoint point, const StepView& view, const auto& hooks) {
      if (observer.splits()) check_->split(point, view.parameters, hooks);
    });
    output = step.run(lent, checking);
    keeps_batch_ = inputs.let_go(lent) || keeps_batch_;
    check_->bring_inputs_by([&inputs, &micro_batches] { inputs.fill(micro_batches); });
    const NamedTensors given = output.all(), captured = replayed_.output().all();
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
  replayed_.begin();
  Checked checked;
  Stopwatch replay_time;
  next_segment_ = 0;
  checked.outcome = check_host_code(step, micro_batches, observer, checked.output);
  using Outcome = TraceCheck::Outcome;
  if (checked.outcome == Outcome::kLeft) {
    if (replayed_.replaced_gradient().empty()) replayed_.hand_out_gradients(step);
    ThrownInStep thrown(observer, check_->thrown());
    checked.output = replayed_.finish_by_op(next_segment_ - 1, step, thrown);
    return checked;
  }
  if (checked.outcome == Outcome::kDiffers) return checked;
  step.zero_grad();
  checked.output = {};
  if (checked.outcome == Outcome::kUnreadable) return checked;
  was_checked_ = true;
  if (next_segment_ == 0) {
    replay_time = Stopwatch();
    replayed_.inputs().fill(micro_batches);  // host code may have written to the batch by address
  }
  checked.output = replayed_.run_last(step, [this](std::size_t segment) { run_checked_segment(segment); });
  checked.replay_seconds = replay_time.seconds();
  return checked;
}

std::optional<CapturedStep::Checked> CapturedStep::capture_and_replay(StepCode& step, const MicroBatches& micro_batches,
                                                                      StepObserver& observer) {
  replayed_.inputs().fill(micro_batches);
  bool is_the_recorded = true;
  const auto follow = [&](StepObserver& capturing, const TraceCheck::RunOp& run_op) {
    StepResult output;
    is_the_recorded =
        check_->follow_capture(host_code(step, replayed_.inputs().micro_batches(), capturing, output), run_op);
    return output;
  };
  const bool captured = replayed_.capture({step, observer, follow, [this] { return check_->place(); }});
  failure_ = replayed_.segments().failure();
  if (!captured) return {};
  was_checked_ = true;
  Checked checked{is_the_recorded ? TraceCheck::Outcome::kSame : TraceCheck::Outcome::kDiffers, {}};
  const Stopwatch replay_time;
  checked.output = replayed_.run(step, observer);
  checked.replay_seconds = replay_time.seconds();
  if (!is_the_recorded) replayed_.forget_capture();
  return checked;
}

TraceCheck::Outcome CapturedStep::check_host_code(StepCode& step, const MicroBatches& micro_batches,
                                                  StepObserver& observer, StepResult& output) {
  AddressWatch addresses;
  outside_.guard(addresses);
  TraceCheck::Callbacks callbacks;
  callbacks.pass_split = [&](std::size_t split) {
    fills_by_address_ = addresses.taken() || fills_by_address_;
    addresses.pause();
    const auto goes_on = c10::make_scope_exit([&] { addresses.resume(); });
    step.zero_grad();
    if (split == 0) replayed_.inputs().fill(micro_batches);
    next_segment_ = split + 1;
    const bool known =
        replayed_.run_to_split(split, step, observer, [this](std::size_t segment) { run_checked_segment(segment); });
    check_->bring_kept(memory());
    return known;
  };
  callbacks.read_holds = [&](std::size_t read) {
    fills_by_address_ = addresses.taken() || fills_by_address_;
    addresses.pause();  // kernels take addresses
    const bool holds = reads_->holds(read, micro_batches);
    addresses.resume();
    return holds;
  };
  callbacks.is_kept = [this](const c10::StorageImpl* memory) { return outside_.is_kept(memory); };
  const TraceCheck::Outcome outcome = check_->run(host_code(step, micro_batches, observer, output), callbacks);
  if (outcome == TraceCheck::Outcome::kSame) outside_.accept_lost();
  fills_by_address_ = addresses.taken() || fills_by_address_;
  return outcome;
}

// On the tensors from outside that the host code has named, and for the tensors that it has kept, both before hooks
// look at them.
void CapturedStep::run_checked_segment(std::size_t segment) {
  const OpSettingsGuard as_recorded(recording_->settings);  // host code may have changed one after the last op
  const auto& splits = recording_->splits;
  StepMemory& of_step = check_->memory();
  of_step.bring_bound(memory());
  replayed_.segments().run(segment);
  of_step.take_bound(memory());
  of_step.fill_kept(segment < splits.size() ? splits[segment].op : recording_->ops.size(), memory());
}

bool CapturedStep::run_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer,
                                StepResult& output) {
  replayed_.inputs().fill(micro_batches);
  return check_->follow(host_code(step, micro_batches, observer, output));
}

StepResult CapturedStep::replay_followed(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer) {
  replayed_.inputs().fill(micro_batches);
  check_->memory().bring_bound(memory());
  const OpSettingsGuard as_recorded(recording_->settings);  // the eager run may have ended with others
  return replayed_.run(step, observer);
}

OpHashes CapturedStep::run_by_op(const MicroBatches& micro_batches) {
  replayed_.inputs().fill(micro_batches);
  const OpSettingsGuard as_recorded(recording_->settings);
  return duet::run_by_op(recording_);
}

bool CapturedStep::still_same(StepCode& step, StepObserver& observer) {
  const Gradients gradients(step.parameters());
  const auto back = c10::make_scope_exit([&] { gradients.put_back(step.parameters()); });
  step.zero_grad();
  StepResult output;
  return check_->still_same(host_code(step, replayed_.inputs().micro_batches(), observer, output));
}

StepResult CapturedStep::replay(StepCode& step, const MicroBatches& micro_batches, StepObserver& observer) {
  replayed_.inputs().fill(micro_batches);
  return replayed_.run(step, observer);
}

}  // namespace duet
