#include "graph/record/program_bytes.h"
#include "graph/replay/cpu_program.h"

namespace duet {

namespace {

// With what the allocator adds to each.
constexpr int64_t kAllocation = 16, kMapNode = 64;
constexpr int64_t kTensor = sizeof(c10::TensorImpl) + kAllocation, kStorage = sizeof(c10::StorageImpl) + kAllocation;

int64_t bytes_of(const std::vector<StepProgram::Slot>& slots) {
  int64_t bytes = kAllocation;
  for (const StepProgram::Slot& slot : slots) {
    const auto values = static_cast<int64_t>(slot.values.size());
    bytes += static_cast<int64_t>(sizeof(StepProgram::Slot)) + (values > 0 ? kAllocation + 8 * values : 0);
  }
  return bytes;
}

}  // namespace

int64_t heap_bytes_of(const StepProgram& program) {
  int64_t bytes = 0;
  for (const StepProgram::Op& op : program.ops) {
    const auto arguments = static_cast<int64_t>(op.arguments.size());
    bytes += static_cast<int64_t>(sizeof(StepProgram::Op)) + bytes_of(op.arguments) + bytes_of(op.results);
    bytes += static_cast<int64_t>(sizeof(Instruction) + sizeof(c10::IValue) * arguments) + 4 * kAllocation;
  }
  // Each in the table and as the key to it, and as two tensors: the program's, and what the check hands out.
  for (const ValueTable::Value& value : program.table.values()) {
    const auto dims = static_cast<int64_t>(value.sizes.size());
    bytes +=
        2 * static_cast<int64_t>(sizeof(ValueTable::Value)) + kMapNode + 4 * (8 * dims + kAllocation) + 2 * kTensor;
  }
  // The recorded one, the program's and the check's.
  for (std::size_t s = 0; s < program.table.storages().size(); ++s) {
    bytes += static_cast<int64_t>(sizeof(ValueTable::Storage)) + kMapNode + 3 * kStorage;
  }
  return bytes;
}

}  // namespace duet
