#include "graph/record/input_watch.h"
#include <algorithm>

namespace duet {

int64_t InputWatch::watch(const MicroBatches& lent, const MicroBatches& given) {
  int64_t bytes = 0;
  for (std::size_t b = 0; b < lent.batches.size(); ++b) {
    for (std::size_t i = 0; i < lent.batches[b].items().size(); ++i) {
      const auto& [name, tensor] = lent.batches[b].items()[i];
      if (!tensor.has_storage()) continue;
      const c10::weak_intrusive_ptr<c10::TensorImpl> weak(tensor.getIntrusivePtr());
      inputs_.try_emplace(tensor.storage().unsafeGetStorageImpl(),
                          Input{name, MemoryRange::of(tensor), given.batches[b].items()[i].second, weak});
      bytes += static_cast<int64_t>(tensor.nbytes());
    }
  }
  return bytes;
}

std::string InputWatch::give_storage_back(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
  const std::string& name = op.schema().name();
  if (name != "aten::as_strided" && name != "aten::set_") return {};
  const std::size_t first = stack.size() - op.schema().arguments().size();
  for (std::size_t i = first; i < stack.size(); ++i) {
    const c10::StorageImpl* storage = nullptr;
    if (stack[i].isStorage()) storage = stack[i].toStorage().unsafeGetStorageImpl();
    if (stack[i].isTensor() && stack[i].toTensor().has_storage()) {
      storage = stack[i].toTensor().storage().unsafeGetStorageImpl();
    }
    const auto input = inputs_.find(storage);
    if (input == inputs_.end()) continue;
    const at::Tensor& given = input->second.given;
    const bool alike = given.storage_offset() == 0 && given.storage().nbytes() == storage->nbytes();
    if (alike) return {};
    stack[i] = stack[i].isStorage() ? c10::IValue(given.storage()) : c10::IValue(given);
    return input->second.name;
  }
  return {};
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
