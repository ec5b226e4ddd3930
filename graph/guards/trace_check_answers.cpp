#include "base/detail/op_rules.h"
#include "graph/guards/recorded_op.h"
#include "graph/guards/trace_check.h"

// What TraceCheck gives the host code in the place of an op's results.

namespace duet {

void TraceCheck::answer(std::size_t index, torch::jit::Stack* stack) {
  const StepProgram::Op& recorded = recording_->ops[index];
  const std::size_t first = stack->size() - given(recorded).size();
  torch::jit::Stack results;
  results.reserve(recorded.results.size());
  for (std::size_t r = 0; r < recorded.results.size(); ++r) {
    const StepProgram::Slot& slot = recorded.results[r];
    const int argument = ops_[index].returned[r];
    const bool is_argument = slot.kind != StepProgram::Slot::Kind::kConstant && argument >= 0;
    results.push_back(is_argument ? (*stack)[first + argument] : slot_value(slot, [&](int value) {
      return value < 0 ? at::Tensor() : memory_.hand_out(value, index);
    }));
  }
  for (const int storage : ops_[index].written) memory_.mark_stale(storage);
  if (recorded.recorded_as) resize_outputs(recorded, *stack);
  stack->resize(first);
  for (c10::IValue& result : results) stack->push_back(std::move(result));
}

// Outputs that were given empty have their size afterwards.
void TraceCheck::resize_outputs(const StepProgram::Op& recorded, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - recorded.arguments.size();
  for (std::size_t i = 0; i < recorded.arguments.size(); ++i) {
    const StepProgram::Slot& slot = recorded.arguments[i];
    if (slot.kind != StepProgram::Slot::Kind::kValue || slot.values[0] < 0) continue;
    const ValueTable::Value& value = recording_->table.values()[slot.values[0]];
    const at::Tensor& tensor = stack[first + i].toTensor();
    if (is_same_place(value, tensor)) continue;
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(value.sizes, value.strides, value.offset);
  }
}

// An op that has really run: what it made is from now on what the recording calls by these values.
void TraceCheck::adopt(std::size_t index, const torch::jit::Stack& stack) {
  const StepProgram::Op& recorded = recording_->ops[index];
  const std::size_t first = stack.size() - recorded.results.size();
  for (std::size_t r = 0; r < recorded.results.size(); ++r) {
    const StepProgram::Slot& slot = recorded.results[r];
    for (std::size_t i = 0; i < slot.values.size(); ++i) {
      const int value = slot.values[i];
      if (value < 0 || !recording_->table.made_by(index, value)) continue;
      const at::Tensor made =
          stack[first + r].isTensor() ? stack[first + r].toTensor() : stack[first + r].toListRef()[i].toTensor();
      if (!made.defined() || !made.has_storage()) continue;
      memory_.see(recording_->table.values()[value].storage, made.storage().unsafeGetStorageImpl());
    }
  }
}

}  // namespace duet
