#include "graph/explain/step_sandbox.h"
#include <algorithm>
#include <exception>
#include <ATen/core/grad_mode.h>
#include "base/detail/bits.h"
#include "base/detail/op_rules.h"
#include "base/device.h"
#include "base/log.h"
#include "graph/record/step_program.h"

namespace duet {

namespace {

// Every tensor that belongs to the trainer, as it is named now: a step may put another one in the place of a buffer.
StateDict live_tensors(TrainStep& step) {
  StateDict live;
  for (const auto& [name, tensor] : step.task().named_parameters()) live.set("model." + name, tensor.detach());
  for (const auto& [name, tensor] : step.task().named_buffers()) live.set("model." + name, tensor.detach());
  for (const auto& [name, tensor] : step.mutable_state()) live.set("state." + name, tensor.detach());
  return live;
}

StateDict cloned(const StateDict& state) {
  const at::NoGradGuard no_grad;
  StateDict copy;
  for (const auto& [name, tensor] : state.tensors()) copy.set(name, tensor.detach().clone());
  for (const auto& [name, value] : state.values()) copy.set(name, value);
  return copy;
}

// What did not change needs no write, and an expanded buffer would refuse one.
void copy_back(const StateDict& saved, const StateDict& live) {
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : live.tensors()) {
    if (!saved.has(name)) continue;
    const at::Tensor& before = saved.tensor(name);
    const bool fits = before.sizes() == tensor.sizes() && before.scalar_type() == tensor.scalar_type();
    if (fits && !same_bits(before, tensor)) tensor.detach().copy_(before);
  }
}

NamedTensors known_tensors(TrainStep& step) {
  const StateDict live = live_tensors(step);
  return {live.tensors().begin(), live.tensors().end()};
}

}  // namespace

ForeignState::ForeignState(const NamedTensors& known) {
  for (const auto& item : known) {
    if (item.second.has_storage()) known_.insert(item.second.storage().unsafeGetStorageImpl());
  }
}

void ForeignState::watch(const std::function<void()>& step) {
  made_.clear();
  before_.clear();
  const OpTap tap(static_cast<OpListener&>(*this));
  step();
}

void ForeignState::on_call(const c10::OperatorHandle& op, c10::DispatchKeySet below, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::vector<std::size_t> hidden = hidden_writes(op);
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const bool is_hidden = std::find(hidden.begin(), hidden.end(), i) != hidden.end();
    look_at((*stack)[stack->size() - arguments.size() + i], is_hidden || writes(arguments[i]));
  }
  op.redispatchBoxed(below, stack);
  for (std::size_t i = stack->size() - op.schema().returns().size(); i < stack->size(); ++i) note_made((*stack)[i]);
}

void ForeignState::look_at(const c10::IValue& argument, bool written) {
  if (argument.isTensor()) {
    look_at(argument.toTensor(), written);
  } else if (argument.isGenerator()) {
    const at::Generator generator = argument.toGenerator();
    const bool known = std::any_of(generators_.begin(), generators_.end(),
                                   [&generator](const auto& item) { return item.first == generator; });
    if (!known) generators_.emplace_back(generator, generator.get_state());
  } else if (argument.isList()) {
    for (const c10::IValue& item : argument.toListRef()) {
      if (item.isTensor()) look_at(item.toTensor(), written);
    }
  }
}

void ForeignState::look_at(const at::Tensor& tensor, bool written) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  const c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
  if (made_.count(memory) != 0) return;
  before_.insert(memory);
  if (!written || !known_.insert(memory).second) return;
  const at::NoGradGuard no_grad;
  const at::Tensor bytes = bytes_of(tensor.storage());
  saved_.emplace_back(bytes, bytes.clone());
}

void ForeignState::note_made(const c10::IValue& result) {
  if (result.isTensor()) return note_made(result.toTensor());
  if (!result.isTensorList()) return;
  for (const c10::IValue& item : result.toListRef()) note_made(item.toTensor());
}

void ForeignState::note_made(const at::Tensor& result) {
  if (!result.defined() || !result.has_storage()) return;
  const c10::StorageImpl* memory = result.storage().unsafeGetStorageImpl();
  if (before_.count(memory) == 0) made_.insert(memory);
}

void ForeignState::restore() {
  const at::NoGradGuard no_grad;
  for (const auto& [bytes, copy] : saved_) {
    if (!same_bits(bytes, copy)) bytes.copy_(copy);
  }
  for (auto& [generator, state] : generators_) generator.set_state(state);
}

StepSandbox::StepSandbox(TrainStep& step)
    : step_(step),
      tensors_(cloned(live_tensors(step))),
      optimizer_(cloned(step.state_dict())),
      random_(cloned(random_state())),
      foreign_(known_tensors(step)) {
  for (const auto& parameter : step.parameters()) gradients_.push_back(parameter.second.grad());
}

// The optimizer's part by the names of its state: parameters may have got step counts of their own meanwhile.
void StepSandbox::restore() {
  step_.zero_grad();
  copy_back(tensors_, live_tensors(step_));
  copy_back(optimizer_, step_.state_dict());
  foreign_.restore();
  set_random_state(random_);
}

// Which numbers were set, and what the optimizer's host side has noted of a first step. The load takes back the mark of
// a step that was not finite, so the tensors come after it.
void StepSandbox::restore_host_side() {
  step_.load_state_dict(optimizer_);
  restore();
  const NamedTensors& parameters = step_.parameters();
  for (std::size_t i = 0; i < parameters.size(); ++i) parameters[i].second.mutable_grad() = gradients_[i];
}

StepSandbox::~StepSandbox() {
  try {
    restore_host_side();
  } catch (const std::exception& error) {  // a broken device
    log_error(std::string("[StepSandbox] the state before the explanation is lost: ") + error.what());
  }
}

}  // namespace duet
