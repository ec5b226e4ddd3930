#include "graph/guards/catch_up.h"
#include <ATen/core/LegacyTypeDispatch.h>
#include "graph/guards/shadow_storage.h"

namespace duet {

using Slot = StepProgram::Slot;

void RecordedOps::run(std::size_t index) const {
  const StepProgram::Op& op = recording_.ops[index];
  if (is_done(index)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ThreadSettingsGuard settings;
  op.settings.apply();
  torch::jit::Stack stack;
  for (const Slot& slot : op.arguments) stack.push_back(slot_value(slot, [this](int v) { return tensor(v); }));
  op.handle.redispatchBoxed(c10::DispatchKeySet(key_of(op)), &stack);
  for (std::size_t r = 0; r < op.results.size(); ++r) take_results(index, op.results[r], stack[r]);
}

// Host code has made its constants itself, and views are made where they are used.
bool RecordedOps::is_done(std::size_t index) const {
  const StepProgram::Op& op = recording_.ops[index];
  if (op.copies_constant) return !is_shadow(*memory_of(op.results.front().values.front()));
  return op.on_host || recording_.is_view(index);
}

c10::StorageImpl* RecordedOps::memory_of(int value) const {
  return memory_[recording_.table.values()[value].storage].unsafeGetStorageImpl();
}

c10::DispatchKey RecordedOps::key_of(const StepProgram::Op& op) const {
  bool on_device = false;
  const auto look = [&](int value) { on_device = on_device || recording_.table.storage_of(value).device.is_cuda(); };
  for_each_value(op.arguments, look);
  for_each_value(op.results, look);
  return on_device ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
}

at::Tensor RecordedOps::tensor(int value) const {
  if (value < 0) return {};
  const ValueTable::Value& wanted = recording_.table.values()[value];
  const ValueTable::Storage& storage = recording_.table.storages()[wanted.storage];
  const bool is_original = wanted.original.defined() && !storage.changes && !storage.input;
  return is_original ? wanted.original : tensor_at(memory_[wanted.storage], wanted);
}

void RecordedOps::take_results(std::size_t index, const Slot& slot, const c10::IValue& result) const {
  for (std::size_t i = 0; i < slot.values.size(); ++i) {
    const int value = slot.values[i];
    if (value < 0 || !recording_.table.made_by(index, value) || !is_shadow(*memory_of(value))) continue;
    const at::Tensor& made = result.isTensor() ? result.toTensor() : result.toListRef()[i].toTensor();
    memory_of(value)->set_nbytes(made.storage().nbytes());
    fill_shadow(*memory_of(value), take_memory(made));
  }
}

}  // namespace duet
