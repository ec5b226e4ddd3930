#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>
#include <c10/core/Storage.h>
#include "base/detail/memory_range.h"

namespace duet {

// The memory that steps write to beside their own. What a batch shares of it is part of the signature: a step may read
// the batch after it has written there.
class WrittenMemory {
 public:
  using Ranges = std::vector<std::pair<c10::Storage, MemoryRange>>;

  void add(const Ranges& ranges) {
    std::erase_if(parts_, [](const Part& part) { return part.memory.expired(); });
    for (const auto& [memory, range] : ranges) {
      if (std::ranges::find(parts_, range, &Part::range) != parts_.end()) continue;
      parts_.push_back({range, memory.getWeakStorageImpl(), next_number_++});
    }
  }

  // Appends the numbers of the parts that the tensor shares.
  void append_shared(const at::Tensor& tensor, std::vector<int64_t>& key) const {
    const MemoryRange range = MemoryRange::of(tensor);
    for (const Part& part : parts_) {
      if (part.range.overlaps(range) && !part.memory.expired()) key.push_back(part.number);
    }
  }

 private:
  struct Part {
    MemoryRange range;
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    int64_t number;
  };
  std::vector<Part> parts_;
  int64_t next_number_ = 0;
};

}  // namespace duet
