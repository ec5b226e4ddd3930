#include "graph/record/input_watch.h"
#include <algorithm>

namespace duet {

int64_t InputWatch::watch(const MicroBatches& micro_batches) {
  int64_t bytes = 0;
  for (const Batch& batch : micro_batches.batches) {
    for (const auto& [name, tensor] : batch.items()) {
      if (!tensor.has_storage()) continue;
      const c10::weak_intrusive_ptr<c10::TensorImpl> weak(tensor.getIntrusivePtr());
      inputs_.try_emplace(tensor.storage().unsafeGetStorageImpl(), Input{name, MemoryRange::of(tensor), weak});
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

void InputWatch::name_outside(const NamedTensors& tensors) {
  for (const auto& [name, tensor] : tensors) outside_.emplace_back(name, MemoryRange::of(tensor));
}

const std::string& InputWatch::name_of(const at::Tensor& input) const {
  return inputs_.at(input.storage().unsafeGetStorageImpl()).name;
}

// An input's own storage hides from autograd that the memory which the user gave has changed.
void InputWatch::note_write(const std::string& op, const at::Tensor& written) {
  const MemoryRange range = MemoryRange::of(written);
  for (auto& [storage, input] : inputs_) {
    if (!range.overlaps(input.memory) || storage == written.storage().unsafeGetStorageImpl()) continue;
    const auto named = std::ranges::find_if(outside_, [&](const auto& item) { return range.overlaps(item.second); });
    const std::string what = named == outside_.end() ? "a tensor from outside the model" : "'" + named->first + "'";
    input.overwritten = what + " (" + op + ")";
    if (const auto tensor = input.tensor.lock()) tensor->bump_version();
  }
}

std::string InputWatch::overwritten(const at::Tensor& tensor) const {
  const auto input = inputs_.find(tensor.storage().unsafeGetStorageImpl());
  return input == inputs_.end() ? std::string() : input->second.overwritten;
}

}  // namespace duet
