#pragma once

#include <cstddef>
#include <ATen/core/Tensor.h>

namespace duet {

// How many refer to the tensor. Python keeps an object for a tensor that it has seen as long as C++ refers to it; that
// object's own reference only counts if somebody in Python holds the object.
inline std::size_t references_to(const c10::TensorImpl* tensor) {
  const auto count = c10::raw::intrusive_ptr::use_count(const_cast<c10::TensorImpl*>(tensor));
  return count - (tensor->pyobj_slot()->has_unique_reference() ? 1 : 0);
}
inline std::size_t references_to(const at::Tensor& tensor) { return references_to(tensor.unsafeGetTensorImpl()); }

}  // namespace duet
