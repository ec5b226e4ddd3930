#include <duet/graph/tape.h>

namespace duet {

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

}  // namespace duet
