#include "graph/guards/catch_up.h"
#include <ATen/core/LegacyTypeDispatch.h>
#include "graph/guards/shadow_storage.h"

namespace duet {

namespace {

using Slot = StepProgram::Slot;

class RecordedOps {
 public:
  RecordedOps(const StepProgram& recording, const std::vector<c10::Storage>& memory)
      : table_(recording.table), ops_(recording.ops), memory_(memory) {}

  void run(std::size_t index) {
    const StepProgram::Op& op = ops_[index];
    if (is_done(op, index)) return;
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const ThreadSettingsGuard settings;
    op.settings.apply();
    torch::jit::Stack stack;
    for (const Slot& slot : op.arguments) stack.push_back(argument_of(slot));
    op.handle.redispatchBoxed(c10::DispatchKeySet(key_of(op)), &stack);
    for (std::size_t r = 0; r < op.results.size(); ++r) take_results(index, op.results[r], stack[r]);
  }

 private:
  // Host code has made its constants itself, and views are made where they are used.
  bool is_done(const StepProgram::Op& op, std::size_t index) const {
    if (op.copies_constant) return !is_shadow(*memory_of(op.results.front().values.front()));
    if (op.on_host || op.handle.hasTag(at::Tag::inplace_view)) return true;
    if (!op.written.empty() || op.random || op.results.empty()) return false;
    bool any = false;
    bool fresh = false;
    for_each_value(op.results, [&](int value) {
      any = true;
      fresh = fresh || table_.made_by(index, value);
    });
    return any && !fresh;
  }

  c10::StorageImpl* memory_of(int value) const {
    return memory_[table_.values()[value].storage].unsafeGetStorageImpl();
  }

  c10::DispatchKey key_of(const StepProgram::Op& op) const {
    c10::Device device = c10::kCPU;
    const auto look = [&](int value) {
      if (!table_.storage_of(value).device.is_cpu()) device = table_.storage_of(value).device;
    };
    for_each_value(op.arguments, look);
    for_each_value(op.results, look);
    return device.is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  }

  at::Tensor tensor(int value) const {
    if (value < 0) return {};
    const ValueTable::Value& wanted = table_.values()[value];
    const ValueTable::Storage& storage = table_.storages()[wanted.storage];
    const bool is_original = wanted.original.defined() && !storage.changes && !storage.input;
    return is_original ? wanted.original : tensor_at(memory_[wanted.storage], wanted);
  }

  c10::IValue argument_of(const Slot& slot) const {
    return slot_value(slot, [this](int v) { return tensor(v); });
  }

  void take_results(std::size_t index, const Slot& slot, const c10::IValue& result) {
    for (std::size_t i = 0; i < slot.values.size(); ++i) {
      const int value = slot.values[i];
      if (value < 0 || !table_.made_by(index, value) || !is_shadow(*memory_of(value))) continue;
      const at::Tensor& made = result.isTensor() ? result.toTensor() : result.toListRef()[i].toTensor();
      memory_of(value)->set_nbytes(made.storage().nbytes());
      fill_shadow(*memory_of(value), take_memory(made));
    }
  }

  const ValueTable& table_;
  const std::vector<StepProgram::Op>& ops_;
  const std::vector<c10::Storage>& memory_;
};

}  // namespace

void run_recorded(const StepProgram& recording, std::size_t end, const std::vector<c10::Storage>& memory) {
  RecordedOps ops(recording, memory);
  for (std::size_t i = 0; i < end; ++i) ops.run(i);
}

void run_to_first_split(const StepProgram& recording, const std::vector<c10::Storage>& memory,
                        const std::function<void(std::size_t)>& ran) {
  RecordedOps ops(recording, memory);
  const std::size_t end = recording.splits.empty() ? recording.ops.size() : recording.splits.front().op;
  for (std::size_t i = 0; i < end; ++i) {
    ops.run(i);
    ran(i);
  }
}

}  // namespace duet
