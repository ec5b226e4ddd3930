#include "base/detail/autograd_watch.h"
#include <ATen/SavedTensorHooks.h>
#include <ATen/SequenceNumber.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include "base/detail/stack_tensors.h"

namespace duet {

AutogradWatch::AutogradWatch() : first_node_(at::sequence_number::peek()) {}

const void* AutogradWatch::memory_of(const c10::TensorImpl& tensor) {
  return tensor.has_storage() ? tensor.unsafe_storage().unsafeGetStorageImpl() : nullptr;
}

void AutogradWatch::see(const torch::jit::Stack& stack, std::size_t count) {
  if (paused_) return;
  const bool packs = !at::SavedTensorDefaultHooks::get_tls_state().stack.empty();
  is_plain_ = is_plain_ && !packs && torch::autograd::get_current_node() == nullptr;
  if (!is_plain_ || !at::GradMode::is_enabled()) return;
  for_each_tensor(stack, count, [this](const at::Tensor& tensor) {
    const c10::VariableVersion& counter = tensor.unsafeGetTensorImpl()->version_counter();
    const uint32_t version = counter.enabled() ? counter.current_version() : 0;
    seen_.push_back({Weak(tensor.getIntrusivePtr()), memory_of(*tensor.unsafeGetTensorImpl()), counter, version});
  });
}

std::optional<std::vector<uint32_t>> AutogradWatch::changes() const {
  if (!is_plain_) return {};
  std::vector<uint32_t> changes;
  changes.reserve(seen_.size());
  for (const Seen& seen : seen_) {
    const auto tensor = seen.tensor.lock();
    if (tensor && memory_of(*tensor) != seen.memory) return {};
    changes.push_back(seen.version_counter.enabled() ? seen.version_counter.current_version() - seen.version : 0);
  }
  return changes;
}

}  // namespace duet
