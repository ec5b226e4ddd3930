#include "graph/guards/state_copies.h"
#include <algorithm>
#include <unordered_map>
#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>
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

int64_t bytes_in_block(const at::Tensor& tensor) {
  constexpr int64_t kAlignment = 64;
  const bool plain = tensor.is_cpu() && tensor.layout() == at::kStrided && !tensor.is_quantized();
  return plain ? (static_cast<int64_t>(tensor.nbytes()) + kAlignment - 1) / kAlignment * kAlignment : 0;
}

at::Tensor spare_copy(const at::Tensor& tensor) {
  try {
    return tensor.detach().clone();
  } catch (const c10::OutOfMemoryError&) {
    if (tensor.is_cpu()) throw;
    return tensor.detach().cpu();  // slow, but a model that just fits is compared too
  }
}

}  // namespace

NamedTensors state_of(const StepCode& step, const StepProgram& recording) {
  NamedTensors state;
  std::unordered_map<const void*, std::size_t> known;
  for (const auto& item : step.parameters()) add_state(state, known, item);
  for (const auto& item : step.mutable_state()) add_state(state, known, item);
  for (const at::Tensor& tensor : recording.changed_outside()) {
    if (known.count(tensor.storage().unsafeGetStorageImpl()) > 0) continue;
    add_state(state, known, {"a tensor that is not part of the model", tensor});
  }
  return state;
}

// Those of the host lie in one block, which goes back to the system whole.
NamedTensors copy_of(const NamedTensors& tensors) {
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (const auto& item : tensors) bytes += bytes_in_block(item.second);
  const at::Tensor block = at::empty({bytes}, at::kByte);
  NamedTensors copies;
  int64_t offset = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t size = bytes_in_block(tensor);
    at::Tensor copy = size > 0 ? at::empty({0}, tensor.options()) : spare_copy(tensor);
    if (size > 0) {
      copy.set_(block.storage(), offset / tensor.element_size(), tensor.sizes(), {});
      copy.copy_(tensor);
      offset += size;
    }
    copies.emplace_back(name, copy);
  }
  return copies;
}

// Tensor by tensor, so that one copy of the state is enough for a comparison.
void swap_values(const NamedTensors& saved, const NamedTensors& live) {
  const at::NoGradGuard no_grad;
  for (std::size_t i = 0; i < saved.size(); ++i) {
    if (same_bits(saved[i].second, live[i].second)) continue;
    const at::Tensor now = spare_copy(live[i].second);
    live[i].second.detach().copy_(saved[i].second);
    saved[i].second.copy_(now);
  }
}

void restore(const NamedTensors& saved, const NamedTensors& live) {
  for (std::size_t i = 0; i < saved.size(); ++i) restore(saved[i].second, live[i].second);
}

void restore(const at::Tensor& saved, const at::Tensor& live) {
  const at::NoGradGuard no_grad;
  if (!same_bits(saved, live)) live.detach().copy_(saved);
}

std::vector<std::string> differences(const NamedTensors& a, const NamedTensors& b) {
  std::vector<std::string> names;
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const bool in_both = i < a.size() && i < b.size() && a[i].first == b[i].first;
    if (!in_both || !same_bits(a[i].second, b[i].second)) names.push_back((i < a.size() ? a : b)[i].first);
  }
  return names;
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
