#include "graph/guards/state_copies.h"
#include <algorithm>
#include <unordered_map>
#include "base/detail/bits.h"
#include "base/device.h"

namespace duet {

namespace {

void add_state(NamedTensors& state, std::unordered_map<const void*, std::size_t>& known,
               const std::pair<std::string, at::Tensor>& item) {
  const c10::Storage& memory = item.second.storage();
  const auto [found, is_new] = known.try_emplace(memory.unsafeGetStorageImpl(), state.size());
  if (is_new) {
    state.push_back(item);
  } else {
    state[found->second].second = bytes_of(memory);
  }
}

}  // namespace

NamedTensors state_of(const StepCode& step, const StepProgram& recording, bool hooks_act) {
  NamedTensors state;
  std::unordered_map<const void*, std::size_t> known;
  for (const auto& item : step.parameters()) add_state(state, known, item);
  for (const auto& item : step.mutable_state()) add_state(state, known, item);
  NamedTensors others = recording.changed_outside();
  if (hooks_act) {
    const NamedTensors weights = step.weights();
    others.insert(others.end(), weights.begin(), weights.end());
    for (auto& item : recording.unknown_outside(others)) others.push_back(std::move(item));
  }
  const auto trained = known;
  for (const auto& item : others) {
    const bool is_new = item.second.has_storage() && !trained.contains(item.second.storage().unsafeGetStorageImpl());
    if (is_new) add_state(state, known, item);
  }
  return state;
}

RandomStates::RandomStates(const std::vector<at::Generator>& own) : standard_(random_state()) {
  for (const at::Generator& generator : own) add(generator);
}

void RandomStates::add(const at::Generator& generator) {
  const bool known = std::ranges::any_of(own_, [&generator](const auto& item) { return item.first == generator; });
  if (!known) own_.emplace_back(generator, generator.get_state());
}

void RandomStates::restore() const {
  set_random_state(standard_);
  for (const auto& [generator, state] : own_) at::Generator(generator).set_state(state);
}

void RandomStates::append_to(NamedTensors& tensors) const {
  for (const auto& [name, tensor] : standard_.tensors()) tensors.emplace_back("random state " + name, tensor);
  for (const auto& item : own_) tensors.emplace_back("random state of the task's generator", item.second);
}

Gradients::Gradients(const NamedTensors& parameters) {
  for (const auto& parameter : parameters) gradients_.push_back(parameter.second.grad());
}

void Gradients::put_back(const NamedTensors& parameters) const {
  for (std::size_t i = 0; i < gradients_.size(); ++i) parameters[i].second.mutable_grad() = gradients_[i];
}

}  // namespace duet
