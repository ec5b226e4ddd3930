#include "graph/record/step_program.h"
#include <algorithm>
#include <ATen/ops/empty.h>
#include "graph/record/op_rules.h"

namespace duet {

namespace {

std::size_t place_hash(int storage, const at::Tensor& tensor) {
  std::size_t hash = static_cast<std::size_t>(storage) * 1000003 + static_cast<std::size_t>(tensor.storage_offset());
  const auto mix = [&hash](int64_t value) { hash = hash * 1000003 ^ static_cast<std::size_t>(value); };
  mix(static_cast<int64_t>(tensor.scalar_type()));
  for (const int64_t size : tensor.sizes()) mix(size);
  for (const int64_t stride : tensor.strides()) mix(stride);
  return hash;
}

bool same_place(const ValueTable::Value& value, int storage, const at::Tensor& tensor) {
  const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
  const bool value_wrapped = value.original.defined() && value.original.unsafeGetTensorImpl()->is_wrapped_number();
  return value.storage == storage && value.offset == tensor.storage_offset() && value.dtype == tensor.scalar_type() &&
         tensor.sizes() == value.sizes && tensor.strides() == value.strides && wrapped == value_wrapped;
}

}  // namespace

int ValueTable::find_storage(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return -1;
  const auto known = storage_index_.find(tensor.storage().unsafeGetStorageImpl());
  return known == storage_index_.end() ? -1 : known->second;
}

int ValueTable::add_storage(const at::Tensor& tensor, int producer) {
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  const auto [entry, added] = storage_index_.try_emplace(impl, static_cast<int>(storages_.size()));
  if (added) {
    Storage storage;
    storage.weak = c10::weak_intrusive_ptr<c10::StorageImpl>(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
    storage.bytes = impl->nbytes();
    storage.device = tensor.device();
    storage.external = producer < 0;
    storage.producer = producer;
    if (storage.external) storage.strong = tensor.storage();
    storages_.push_back(std::move(storage));
  }
  return entry->second;
}

int ValueTable::find(const at::Tensor& tensor) const {
  const int storage = find_storage(tensor);
  if (storage < 0) return -1;
  const auto [begin, end] = value_index_.equal_range(place_hash(storage, tensor));
  for (auto it = begin; it != end; ++it) {
    if (same_place(values_[it->second], storage, tensor)) return it->second;
  }
  return -1;
}

int ValueTable::add(const at::Tensor& tensor, int storage, bool keep) {
  const int known = find(tensor);
  if (known >= 0) return known;
  Value value{storage, tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), {}};
  if (keep) value.original = tensor;
  const int index = static_cast<int>(values_.size());
  value_index_.emplace(place_hash(storage, tensor), index);
  values_.push_back(std::move(value));
  return index;
}

void ValueTable::make_constant(int storage, const at::Tensor& tensor) {
  storages_[storage].strong = tensor.storage();
  storages_[storage].external = true;
  storages_[storage].uninitialized = false;
}

void ValueTable::make_internal(int storage) {
  storages_[storage].external = false;
  storages_[storage].strong = c10::Storage();
  for (Value& value : values_) {
    if (value.storage == storage) value.original.reset();
  }
}

at::Tensor tensor_at(const c10::Storage& memory, const ValueTable::Value& value) {
  const at::TensorOptions options = at::TensorOptions().dtype(value.dtype).device(memory.device());
  return at::empty({0}, options).set_(memory, value.offset, value.sizes, value.strides);
}

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
