#pragma once

#include <compare>
#include <cstdint>
#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

namespace duet {

// The addresses from the first to the last byte of a tensor, gaps included; empty where it has no elements.
struct MemoryRange {
  std::uintptr_t begin = 0, end = 0;

  auto operator<=>(const MemoryRange& other) const = default;
  bool overlaps(const MemoryRange& other) const { return begin < other.end && other.begin < end; }

  // So many bytes of the memory, from the byte `first` on.
  static MemoryRange of(const c10::Storage& memory, std::size_t first, std::size_t bytes) {
    // Unchecked: an address alone is no access, whoever guards this memory.
    void* const start = memory.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get();
    if (start == nullptr || bytes == 0) return {};
    const std::uintptr_t begin = reinterpret_cast<std::uintptr_t>(start) + first;
    return {begin, begin + bytes};
  }
  // Elements from the first to the last one, gaps included.
  static std::size_t elements_spanned(at::IntArrayRef sizes, at::IntArrayRef strides) {
    int64_t last = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 0) return 0;
      last += (sizes[d] - 1) * strides[d];
    }
    return static_cast<std::size_t>(last + 1);
  }
  static MemoryRange of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return {};
    return of(tensor.storage(), static_cast<std::size_t>(tensor.storage_offset()) * tensor.element_size(),
              elements_spanned(tensor.sizes(), tensor.strides()) * tensor.element_size());
  }
  static MemoryRange of(const c10::Storage& memory) { return of(memory, 0, memory.nbytes()); }
};

}  // namespace duet
