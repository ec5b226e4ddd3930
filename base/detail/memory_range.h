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

  static MemoryRange of(const c10::Storage& memory, int64_t offset, at::IntArrayRef sizes, at::IntArrayRef strides,
                        std::size_t element) {
    int64_t last = 0;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (sizes[d] == 0) return {};
      last += (sizes[d] - 1) * strides[d];
    }
    // Unchecked: an address alone is no access, whoever guards this memory.
    const auto start =
        reinterpret_cast<std::uintptr_t>(memory.unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get());
    if (start == 0) return {};
    const std::uintptr_t begin = start + static_cast<std::size_t>(offset) * element;
    return {begin, begin + static_cast<std::size_t>(last + 1) * element};
  }
  static MemoryRange of(const at::Tensor& tensor) {
    if (!tensor.defined() || !tensor.has_storage()) return {};
    return of(tensor.storage(), tensor.storage_offset(), tensor.sizes(), tensor.strides(), tensor.element_size());
  }
  static MemoryRange of(const c10::Storage& memory) {
    return of(memory, 0, {static_cast<int64_t>(memory.nbytes())}, {1}, 1);
  }
};

}  // namespace duet
