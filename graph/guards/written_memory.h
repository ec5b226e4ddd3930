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
      const auto place = std::ranges::lower_bound(parts_, range, {}, &Part::range);
      if (place != parts_.end() && place->range == range) continue;
      parts_.insert(place, {range, memory.getWeakStorageImpl(), next_number_++, 0});
    }
    std::uintptr_t reach = 0;
    for (Part& part : parts_) part.reach = reach = std::max(reach, part.range.end);
  }

  // Appends the numbers of the parts that the tensor shares.
  void append_shared(const at::Tensor& tensor, std::vector<int64_t>& key) const {
    if (parts_.empty()) return;
    const MemoryRange range = MemoryRange::of(tensor);
    auto part = std::ranges::lower_bound(parts_, range.end, {}, [](const Part& p) { return p.range.begin; });
    while (part != parts_.begin() && (--part)->reach > range.begin) {
      if (part->range.overlaps(range) && !part->memory.expired()) key.push_back(part->number);
    }
  }

 private:
  struct Part {
    MemoryRange range;
    c10::weak_intrusive_ptr<c10::StorageImpl> memory;
    int64_t number;
    std::uintptr_t reach;  // the last end of this part and those before it
  };
  std::vector<Part> parts_;  // by their begin
  int64_t next_number_ = 0;
};

}  // namespace duet
