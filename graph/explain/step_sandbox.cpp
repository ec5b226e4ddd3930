#include "graph/explain/step_sandbox.h"
#include <algorithm>
#include <exception>
#include <ATen/core/grad_mode.h>
#include "base/detail/bits.h"
#include "base/detail/op_rules.h"
#include "base/detail/stack_tensors.h"
#include "base/log.h"
#include "graph/record/step_program.h"

namespace duet {

namespace {

const c10::StorageImpl* memory_of(const at::Tensor& tensor) {
  return tensor.has_storage() ? tensor.storage().unsafeGetStorageImpl() : nullptr;
}

// Everything that belongs to the trainer, as it is named now: a step may put another tensor in the place of a buffer.
StateDict live_state(TrainStep& step) {
  StateDict live;
  live.put("model", weights_of(step.task()));
  live.put("optimizer", step.state_dict());
  std::unordered_set<const c10::StorageImpl*> known;
  for (const auto& item : live.tensors()) known.insert(memory_of(item.second));
  // Step counts are numbered anew by a load: what has a parameter's name goes by that.
  for (const auto& [name, tensor] : step.mutable_state()) {
    const c10::StorageImpl* memory = memory_of(tensor);
    if (memory == nullptr || !known.contains(memory)) live.set("state." + name, tensor.detach());
  }
  return live;
}

}  // namespace

StepSandbox::StepSandbox(TrainStep& step) : step_(step), gradients_(step.parameters()) {
  const StateDict live = live_state(step);
  saved_ = copy_of(live);
  for (const auto& item : live.tensors()) known_.insert(memory_of(item.second));
}

void StepSandbox::watch(const std::function<void()>& code) {
  made_.clear();
  before_.clear();
  const OpTap tap(static_cast<OpListener&>(*this));
  code();
}

void StepSandbox::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::vector<std::size_t> hidden = hidden_writes(op);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = (*stack)[stack->size() - arguments.size() + i];
    const bool written = writes(arguments[i]) || std::ranges::find(hidden, i) != hidden.end();
    for_each_tensor(argument, [&](const at::Tensor& tensor) { look_at(tensor, written); });
    if (argument.isGenerator()) random_.add(argument.toGenerator());
  }
  op.redispatchBoxed(below, stack);
  for_each_tensor(*stack, op.schema().returns().size(), [this](const at::Tensor& result) {
    const c10::StorageImpl* memory = memory_of(result);
    if (memory != nullptr && !before_.contains(memory)) made_.insert(memory);
  });
}

void StepSandbox::look_at(const at::Tensor& tensor, bool written) {
  const c10::StorageImpl* memory = memory_of(tensor);
  if (memory == nullptr || made_.contains(memory)) return;
  before_.insert(memory);
  if (!written || !known_.insert(memory).second) return;
  const at::NoGradGuard no_grad;
  const at::Tensor bytes = bytes_of(tensor.storage());
  others_.emplace_back(bytes, bytes.clone());
}

// By name: the step may have put another tensor in the place of a buffer, and parameters may have got step counts of
// their own meanwhile.
void StepSandbox::restore() {
  step_.zero_grad();
  const StateDict live = live_state(step_);
  for (const auto& [name, tensor] : live.tensors()) {
    if (!saved_.has(name)) continue;
    const at::Tensor& before = saved_.tensor(name);
    const bool fits = before.sizes() == tensor.sizes() && before.scalar_type() == tensor.scalar_type();
    if (fits) duet::restore(before, tensor);
  }
  for (const auto& [bytes, copy] : others_) duet::restore(copy, bytes);
  random_.restore();
}

// Which numbers were set, and what the optimizer's host side has noted of a first step. The load takes back the mark of
// a step that was not finite, so the tensors come after it.
void StepSandbox::restore_host_side() {
  step_.load_state_dict(saved_.part("optimizer"));
  restore();
  gradients_.put_back(step_.parameters());
}

StepSandbox::~StepSandbox() {
  try {
    restore_host_side();
  } catch (const std::exception& error) {  // a broken device
    log_error(std::string("[StepSandbox] the state before the explanation is lost: ") + error.what());
  }
}

}  // namespace duet
