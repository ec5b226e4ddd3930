#include "graph/record/tape.h"

#include <ATen/core/Generator.h>
#include <ATen/ops/empty.h>

#include <algorithm>

namespace duet {

std::vector<std::size_t> hidden_writes(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  const bool norm = name == "aten::native_batch_norm" || name == "aten::cudnn_batch_norm" || name == "aten::miopen_batch_norm";
  return norm ? std::vector<std::size_t>{3, 4} : std::vector<std::size_t>{};  // running mean and variance
}

bool is_empty_like(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  return name.rfind("aten::empty", 0) == 0 || name.rfind("aten::new_empty", 0) == 0;
}

std::size_t value_hash(int storage, const at::Tensor& tensor) {
  std::size_t hash = static_cast<std::size_t>(storage) * 1000003 + static_cast<std::size_t>(tensor.storage_offset());
  const auto mix = [&hash](int64_t value) { hash = hash * 1000003 ^ static_cast<std::size_t>(value); };
  mix(static_cast<int64_t>(tensor.scalar_type()));
  for (const int64_t size : tensor.sizes()) mix(size);
  for (const int64_t stride : tensor.strides()) mix(stride);
  return hash;
}

bool same_place(const Tape::Value& value, int storage, const at::Tensor& tensor) {
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  const bool value_wrapped = value.original.defined() && value.original.unsafeGetTensorImpl()->is_wrapped_number();
  return value.storage == storage && value.offset == tensor.storage_offset() && value.dtype == tensor.scalar_type() &&
         tensor.sizes() == value.sizes && tensor.strides() == value.strides && wrapped == value_wrapped;
}

int Tape::find(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return -1;
  const auto storage = storage_of.find(tensor.storage().unsafeGetStorageImpl());
  if (storage == storage_of.end()) return -1;
  const auto [begin, end] = value_of.equal_range(value_hash(storage->second, tensor));
  for (auto it = begin; it != end; ++it) {
    if (same_place(values[it->second], storage->second, tensor)) return it->second;
  }
  return -1;
}

std::vector<at::Tensor> Tape::changed_outside() const {
  std::vector<bool> changed(storages.size());
  const auto mark = [&](int value) {
    if (value >= 0 && storages[values[value].storage].external) changed[values[value].storage] = true;
  };
  for (const Op& op : ops) {
    for (const int value : op.written) mark(value);
    for (const std::size_t argument : hidden_writes(op.handle)) {
      for (const int value : op.arguments[argument].values) mark(value);
    }
  }
  std::vector<at::Tensor> tensors;
  for (std::size_t s = 0; s < storages.size(); ++s) {
    if (!changed[s]) continue;
    const at::TensorOptions options = at::TensorOptions().dtype(at::kByte).device(storages[s].device);
    tensors.push_back(at::empty({0}, options).set_(storages[s].strong, 0, {static_cast<int64_t>(storages[s].bytes)}, {1}));
  }
  return tensors;
}

std::vector<at::Generator> Tape::generators() const {
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
