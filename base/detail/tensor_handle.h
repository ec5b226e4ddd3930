#pragma once

#include <ATen/core/Tensor.h>

namespace duet {

// Another tensor over the same memory, made without an op. Users may give a tensor that they get other memory
// (set_data, Module::to), and its owner keeps the one that lies where it was.
inline at::Tensor handle_of(const at::Tensor& tensor) {
  return at::Tensor(tensor.unsafeGetTensorImpl()->shallow_copy_and_detach(c10::VariableVersion(0),
                                                                          /*allow_tensor_metadata_change=*/true));
}

// Whether it still lies there, in the same layout.
inline bool lies_over(const at::Tensor& handle, const at::Tensor& tensor) {
  return handle.has_storage() && handle.storage().unsafeGetStorageImpl() == tensor.storage().unsafeGetStorageImpl() &&
         handle.storage_offset() == tensor.storage_offset() && handle.sizes() == tensor.sizes() &&
         handle.strides() == tensor.strides();
}

}  // namespace duet
