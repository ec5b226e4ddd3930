#include "graph/record/step_program.h"
#include <algorithm>
#include "graph/record/op_rules.h"

namespace duet {

std::vector<at::Tensor> StepProgram::changed_outside() const {
  std::vector<bool> changed(table.storages().size());
  const auto mark = [&](int value) {
    if (value >= 0 && table.storage_of(value).external) changed[table.values()[value].storage] = true;
  };
  for (const Op& op : ops) {
    for (const int value : op.written) mark(value);
    for (const std::size_t argument : hidden_writes(op.handle)) {
      for (const int value : op.arguments[argument].values) mark(value);
    }
  }
  std::vector<at::Tensor> tensors;
  for (std::size_t s = 0; s < changed.size(); ++s) {
    if (!changed[s]) continue;
    const auto& storage = table.storages()[s];
    tensors.push_back(tensor_at(storage.strong, {0, 0, {static_cast<int64_t>(storage.bytes)}, {1}, at::kByte, {}}));
  }
  return tensors;
}

std::vector<at::Generator> StepProgram::generators() const {
  std::vector<at::Generator> found;
  for (const Op& op : ops) {
    for (const Slot& slot : op.arguments) {
      if (!slot.constant.isGenerator()) continue;
      const at::Generator generator = slot.constant.toGenerator();
      if (std::find(found.begin(), found.end(), generator) == found.end()) found.push_back(generator);
    }
  }
  return found;
}

}  // namespace duet
