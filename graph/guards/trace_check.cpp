#include "graph/guards/trace_check.h"
#include <algorithm>
#include <ATen/record_function.h>
#include <c10/util/ScopeExit.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/op_rules.h"
#include "base/detail/step_stopped.h"
#include "graph/guards/recorded_ops.h"
#include "graph/guards/shadow_storage.h"

namespace duet {

namespace {

using Slot = StepProgram::Slot;
using Op = StepProgram::Op;

constexpr const char* kReadsByAddress =
    "reads the memory of a tensor of the step, or of a weight or buffer that the step has changed, by its address: "
    "data_ptr(), accessor(), a thread of its own, or an op that works below the dispatcher; use tensor ops for it";
constexpr const char* kHostDraws =
    "draws from a random generator of LibTorch's, or sets its state (checkpointing that restores it?); draw with "
    "tensor ops only";

}  // namespace

TraceCheck::TraceCheck(std::shared_ptr<const StepProgram> recording)
    : recording_(std::move(recording)), memory_(recording_), generators_(recording_->generators()) {
  const ValueTable& table = recording_->table;
  for (std::size_t i = 0; i < recording_->ops.size(); ++i) {
    const Op& op = recording_->ops[i];
    std::vector<int> returned;
    for (std::size_t r = 0; r < op.results.size(); ++r) returned.push_back(argument_returned(called(op).schema(), r));
    const bool is_read = std::count(recording_->reads.begin(), recording_->reads.end(), i) > 0;
    std::vector<int> written;
    for_each_written(op, [&](int value) { written.push_back(table.values()[value].storage); });
    ops_.push_back({std::move(returned), std::move(written), !is_read && is_of_single_numbers(op, table),
                    called(op).hasTag(at::Tag::inplace_view),
                    !called(op).hasTag(at::Tag::pointwise) && !called(op).hasTag(at::Tag::reduction)});
  }
}

void TraceCheck::start() {
  memory_.start(kernels_ == Kernels::kRun && !run_op_);
  generators_.start(/*captured=*/run_op_ != nullptr);
  changed_tensor_.reset();
  bring_inputs_ = nullptr;
  difference_.clear();
  thrown_ = nullptr;
  state_ = State::kComparing;
  unreadable_ = host_used_rng_ = paused_ = passed_ = left_ = differs_further_ = follows_ = false;
  cursor_ = splits_passed_ = 0;
}

TraceCheck::Outcome TraceCheck::run(const HostCode& host_code, const Callbacks& callbacks) {
  callbacks_ = &callbacks;
  start();
  const auto released = c10::make_scope_exit([this] { memory_.release(); });
  const auto undrawn = c10::make_scope_exit([this] { generators_.undo_skips(); });
  const OpTap tap(*this);
  profiled_ = at::isRecordFunctionEnabled();
  const at::RecordFunctionGuard visible(profiled_ && kernels_ == Kernels::kRun);  // a profiler sees what has run
  try {
    const std::vector<at::Tensor> results = host_code();
    if (left_) return Outcome::kLeft;  // the code has swallowed StepStopped
    if (state_ == State::kComparing && skips_what_host_draws()) return unreadable(kHostDraws);
    if (state_ == State::kComparing) end(results);
    differs_further_ = differs_further_ || (follows_ && cursor_ < ops_.size());
  } catch (const HostDrew&) {
    return unreadable(kHostDraws);
  } catch (const std::exception& error) {  // TorchScript makes one of its own out of HostDrew and StepStopped
    if (left_) return Outcome::kLeft;
    if (state_ == State::kComparing && skips_what_host_draws()) return unreadable(kHostDraws);
    if (state_ == State::kComparing && (unreadable_ || is_shadow_access(error))) return unreadable(kReadsByAddress);
    // What ran before the user's exception has run in eager mode, too: random draws, statistics, what is kept.
    if (state_ == State::kComparing && passed_) {
      thrown_ = std::current_exception();
      return Outcome::kLeft;
    }
    if (state_ == State::kComparing && !stops_) go_on_by_op();
    throw;
  }
  return state_ == State::kComparing ? Outcome::kSame : Outcome::kDiffers;
}

TraceCheck::Outcome TraceCheck::unreadable(const std::string& why) {
  difference_ = "the step's host code" + place() + ", " + why;
  host_used_rng_ = why == kHostDraws;
  generators_.restore();
  if (passed_) return Outcome::kLeft;
  state_ = State::kByOp;
  return Outcome::kUnreadable;
}

bool TraceCheck::still_same(const HostCode& host_code) {
  stops_ = true;
  const auto goes_on = c10::make_scope_exit([this] { stops_ = false; });
  const auto undrawn = c10::make_scope_exit([this] { generators_.restore(); });
  try {
    return run(host_code, {}) == Outcome::kSame && difference_.empty();  // the code may have swallowed StepStopped
  } catch (...) {  // TorchScript makes an exception of its own out of StepStopped
    if (difference_.empty()) throw;
    return false;
  }
}

bool TraceCheck::follow(const HostCode& host_code) {
  kernels_ = Kernels::kRun;
  const auto back = c10::make_scope_exit([this] { kernels_ = Kernels::kSkipped; });
  return run(host_code, {}) == Outcome::kSame;
}

bool TraceCheck::follow_capture(const HostCode& host_code, RunOp run_op) {
  run_op_ = std::move(run_op);
  const auto back = c10::make_scope_exit([this] { run_op_ = nullptr; });
  return follow(host_code);
}

void TraceCheck::split(SplitPoint point, const NamedTensors& parameters, const std::function<void()>& hooks) {
  const std::size_t next = splits_passed_++;
  const auto& splits = recording_->splits;
  const bool same = next < splits.size() && splits[next].point == point && splits[next].op == cursor_;
  if (state_ == State::kComparing && !same) differ("hooks act at another place of the step than when it was recorded");
  if (state_ == State::kComparing && kernels_ == Kernels::kSkipped) {
    if (!stops_) pass_split(next, parameters);
    return;
  }
  if (state_ == State::kComparing && host_draws()) differ_by_draws();
  paused_ = true;  // what they call is no part of the step
  const auto goes_on = c10::make_scope_exit([this] { paused_ = false; });
  hooks();
  generators_.note();  // they may draw
}

// The host code gets back the gradients that it had: those of a step that does not run.
void TraceCheck::pass_split(std::size_t split, const NamedTensors& parameters) {
  if (skips_what_host_draws()) throw HostDrew();
  for (const auto& parameter : parameters) own_gradients_.push_back(parameter.second.grad());
  const auto let_go = c10::make_scope_exit([this] { own_gradients_.clear(); });
  memory_.release();
  generators_.undo_skips();
  passed_ = paused_ = true;
  const auto goes_on = c10::make_scope_exit([this] { paused_ = false; });
  state_ = State::kByOp;  // for what hooks throw
  const bool known = callbacks_->pass_split(split);
  state_ = State::kComparing;
  generators_.start();
  left_ = !known;
  if (left_) throw StepStopped();
  memory_.empty(own_gradients_);
  for (std::size_t i = 0; i < own_gradients_.size(); ++i) parameters[i].second.mutable_grad() = own_gradients_[i];
}

// LibTorch's own code need not run where it would do what was recorded.
bool TraceCheck::before_backward(const at::Tensor& loss, const NamedTensors& parameters, const AutogradWatch& watch) {
  if (state_ == State::kByOp || kernels_ == Kernels::kRun || paused_ || left_) return true;
  const auto pass = std::ranges::find(recording_->backward_passes, cursor_, &BackwardPass::begin);
  if (pass == recording_->backward_passes.end()) return true;
  std::vector<int64_t> settings;
  append_settings(settings, !recording_->settings);
  if (settings != pass->settings || shape_of_backward(loss, watch) != pass->shape) return true;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& gradient = parameters[i].second.grad();
    const int value = pass->gradients_before[i];
    if (gradient.defined() != (value >= 0)) return true;
    if (value >= 0 && !memory_.is_same(recording_->table.values()[value], gradient)) return true;
  }
  release_graph(loss);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const int value = pass->gradients_after[i];
    if (value == pass->gradients_before[i]) continue;
    at::Tensor& gradient = parameters[i].second.mutable_grad();
    gradient = value < 0 ? at::Tensor() : memory_.hand_out(value, recording_->table.storage_of(value).producer);
  }
  cursor_ = pass->end;
  return false;
}

void TraceCheck::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const auto run = [&] { op.redispatchBoxed(below, stack); };
  if (paused_ || memory_.is_view_by_other_means(op, *stack)) return run();
  if (left_) throw StepStopped();
  if (state_ == State::kByOp || !matches(op, below, *stack)) return run_by_op(op, below, stack, run);
  const std::size_t index = cursor_++;
  const Op& recorded = recording_->ops[index];
  const bool skipped = kernels_ == Kernels::kSkipped;
  if (skipped && !recorded.on_host && !ops_[index].changes_view && !may_run(index, *stack)) {
    if (recorded.random) generators_.skip_op();
    return answer(index, stack);
  }
  unreadable_ = skipped;  // what it throws is no error of the user's
  run_op_ ? run_op_(op, *stack, run) : run();
  unreadable_ = false;
  if (recorded.random && !skipped) generators_.note();
  if (recorded.on_host && is_empty_like(op)) fill_empty(stack->back().toTensor());
  adopt(index, *stack);
}

// Past another tensor than the recorded one the rest is compared, up to a value that may follow from it.
void TraceCheck::run_by_op(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack,
                           const std::function<void()>& run) {
  if (run_op_ || !follows_) return run_op_ ? run_op_(op, *stack, run) : run();
  follows_ = other_call(op, below, *stack).empty();
  differs_further_ = differs_further_ || !follows_;
  run();
  if (!follows_) return;
  adopt(cursor_, *stack);
  follows_ = same_results(recording_->ops[cursor_++], *stack);
}

// Arithmetic on single numbers that are there costs less to do than to leave out, and host code may read them: a traced
// script computes sizes so.
bool TraceCheck::may_run(std::size_t index, const torch::jit::Stack& stack) const {
  const Op& recorded = recording_->ops[index];
  if (!ops_[index].of_single_numbers) return false;
  for (std::size_t i = stack.size() - given(recorded).size(); i < stack.size(); ++i) {
    if (stack[i].isTensor() && stack[i].toTensor().defined() && !memory_.is_there(stack[i].toTensor())) return false;
  }
  return true;
}

void TraceCheck::answer(std::size_t index, torch::jit::Stack* stack) {
  const Op& recorded = recording_->ops[index];
  const std::size_t first = stack->size() - given(recorded).size();
  torch::jit::Stack results;
  results.reserve(recorded.results.size());
  for (std::size_t r = 0; r < recorded.results.size(); ++r) {
    const Slot& slot = recorded.results[r];
    const int argument = ops_[index].returned[r];
    const bool is_argument = slot.kind != Slot::Kind::kConstant && argument >= 0;
    results.push_back(is_argument ? (*stack)[first + argument] : slot_value(slot, [&](int value) {
      return value < 0 ? at::Tensor() : memory_.hand_out(value, index);
    }));
  }
  for (const int storage : ops_[index].written) memory_.mark_stale(storage);
  if (recorded.recorded_as && !recorded.copies_constant) resize_outputs(recorded, *stack);
  stack->resize(first);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// Outputs that were given empty have their size afterwards.
void TraceCheck::resize_outputs(const Op& recorded, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - recorded.arguments.size();
  for (std::size_t i = 0; i < recorded.arguments.size(); ++i) {
    const Slot& slot = recorded.arguments[i];
    if (slot.kind != Slot::Kind::kValue || slot.values[0] < 0) continue;
    const ValueTable::Value& value = recording_->table.values()[slot.values[0]];
    const at::Tensor& tensor = stack[first + i].toTensor();
    if (is_same_place(value, tensor)) continue;
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(value.sizes, value.strides, value.offset);
  }
}

// An op that has really run: what it made is from now on what the recording calls by these values.
void TraceCheck::adopt(std::size_t index, const torch::jit::Stack& stack) {
  const Op& recorded = recording_->ops[index];
  const std::size_t first = stack.size() - recorded.results.size();
  for (std::size_t r = 0; r < recorded.results.size(); ++r) {
    const Slot& slot = recorded.results[r];
    for (std::size_t i = 0; i < slot.values.size(); ++i) {
      const int value = slot.values[i];
      if (value < 0 || !recording_->table.made_by(index, value)) continue;
      const c10::IValue& result = stack[first + r];
      if (result.isList() && i >= result.toListRef().size()) break;
      const at::Tensor made = result.isTensor() ? result.toTensor() : result.toListRef()[i].toTensor();
      if (!made.defined() || !made.has_storage()) continue;
      memory_.see(recording_->table.values()[value].storage, made.storage().unsafeGetStorageImpl());
    }
  }
}

bool TraceCheck::matches(const c10::OperatorHandle& op, c10::DispatchKeySet below, const torch::jit::Stack& stack) {
  if (kernels_ == Kernels::kRun && draws(op, stack) && host_draws()) return differ_by_draws(), false;
  const std::string other = other_call(op, below, stack);
  return other.empty() || differs(other);
}

// What is called in the place of the recorded op; empty: the same.
std::string TraceCheck::other_call(const c10::OperatorHandle& op, c10::DispatchKeySet below,
                                   const torch::jit::Stack& stack) {
  if (below.has(c10::DispatchKey::Python))
    return full_name(op) + " is handed to Python (a dispatch mode, a subclass of torch.Tensor)";
  if (cursor_ == recording_->ops.size()) return full_name(op) + " is called, where the recorded step had ended";
  const Op& recorded = recording_->ops[cursor_];
  if (!(op == called(recorded)))
    return full_name(op) + " is called, where " + full_name(called(recorded)) + " was recorded";
  const std::vector<Slot>& slots = given(recorded);
  const std::size_t first = stack.size() - slots.size();
  for (std::size_t i = 0; i < slots.size(); ++i) {
    const std::string what = other_argument(slots[i], i, stack[first + i]);
    if (!what.empty())
      return "argument '" + op.schema().arguments()[i].name() + "' of " + full_name(op) + " is " + what;
  }
  const std::string setting = changed_setting(recorded.settings, recording_->settings, ops_[cursor_].may_multiply);
  if (!setting.empty()) return "the setting '" + setting + "' is another one for " + full_name(op);
  if (!memory_.hold_the_same(recorded.constants, /*captured=*/run_op_ != nullptr))
    return "the numbers in a tensor that the host makes for " + full_name(op) + " are others than the recorded ones";
  if (!follows_ && !same_read())
    return "the value that " + full_name(op) + " reads is another one than the recorded one";
  return {};
}

// Host code may have filled by their address the tensors that a value is computed from.
bool TraceCheck::same_read() {
  const auto read = std::ranges::find(recording_->reads, cursor_);
  if (read == recording_->reads.end() || !callbacks_->read_holds) return true;
  return callbacks_->read_holds(read - recording_->reads.begin());
}

// What the argument is in the place of the recorded one; empty: the same.
std::string TraceCheck::other_argument(const Slot& slot, std::size_t index, const c10::IValue& argument) {
  if (slot.kind == Slot::Kind::kConstant) {
    if (same_number(slot.constant, argument)) return {};
    const std::string now = argument.isTensor() ? "a tensor" : c10::str(argument);
    return c10::str(now, ", where ", slot.constant, " was recorded");
  }
  if (slot.kind == Slot::Kind::kValue) {
    if (!argument.isTensor() || !argument.toTensor().defined()) return "no tensor, where one was recorded";
    return other_tensor(slot.values[0], argument.toTensor(), {cursor_, index, 0});
  }
  constexpr const char* kOtherList = "a list of other tensors than the recorded ones";
  if (!argument.isList() || argument.toListRef().size() != slot.values.size()) return kOtherList;
  const auto items = argument.toListRef();
  for (std::size_t i = 0; i < slot.values.size(); ++i) {
    const bool defined = items[i].isTensor() && items[i].toTensor().defined();
    if (defined != (slot.values[i] >= 0)) return kOtherList;
    if (!defined) continue;
    if (std::string what = other_tensor(slot.values[i], items[i].toTensor(), {cursor_, index, i}); !what.empty())
      return what;
  }
  return {};
}

std::string TraceCheck::other_tensor(int value, const at::Tensor& tensor, StepProgram::Place place) {
  const ValueTable::Value& recorded = recording_->table.values()[value];
  if (memory_.is_same(recorded, tensor)) return {};
  if (tensor.has_storage() && is_same_place(recorded, tensor) && memory_.is_from_outside(recorded.storage)) {
    if (follows_ && was_let_go(recorded.storage)) return {};
    changed_tensor_ = changed_tensor_.value_or(place);
  }
  return c10::str("another tensor (", tensor.scalar_type(), tensor.sizes(), ") than the recorded one (", recorded.dtype,
                  at::IntArrayRef(recorded.sizes), ")");
}

void TraceCheck::end(const std::vector<at::Tensor>& results) {
  if (host_draws()) {
    differ_by_draws();
  } else if (cursor_ < recording_->ops.size()) {
    differ("the step ends, where " + full_name(called(recording_->ops[cursor_])) + " was recorded");
  } else if (!memory_.are_results(results)) {
    differ("it gives other tensors than the recorded ones");
  } else if (memory_.local_outlives_step()) {
    differ("it reads another tensor from outside the step than the recorded one");
  } else if (memory_.is_kept_by_others(results)) {
    differ("somebody keeps a tensor of the step that nobody kept when it was recorded");
  }
}

void TraceCheck::rename(const std::string& result) {
  if (state_ == State::kComparing) differ("it calls a result '" + result + "', where another name was recorded");
}

void TraceCheck::differ(std::string what) {
  if (skips_what_host_draws()) throw HostDrew();
  difference_ = std::move(what) + place();
  follows_ = changed_tensor_.has_value();
  left_ = passed_ && kernels_ == Kernels::kSkipped;
  if (stops_ || left_) throw StepStopped();
  go_on_by_op();
}

void TraceCheck::differ_by_draws() {
  host_used_rng_ = true;
  differ(std::string("the step's host code ") + kHostDraws);
}

// With what was recorded up to here in place.
void TraceCheck::go_on_by_op() {
  state_ = State::kByOp;  // what is called from here on is no call to compare
  at::enableRecordFunction(profiled_);
  memory_.release();
  if (kernels_ == Kernels::kRun) return;
  generators_.undo_skips();
  if (bring_inputs_) bring_inputs_();
  const OpSettingsGuard as_recorded(recording_->settings);  // host code may have changed one just now
  const RecordedOps ops(*recording_, memory_.all());
  for (std::size_t i = 0; i < cursor_; ++i) ops.run(i);
}

std::string TraceCheck::place() const {
  const std::string& parameter = cursor_ < recording_->ops.size() ? recording_->ops[cursor_].place
                                 : recording_->ops.empty()        ? std::string()
                                                                  : recording_->ops.back().place;
  return ", " + place_after(parameter);
}

}  // namespace duet
