#include "graph/replay/memory_plan.h"
#include <algorithm>
#include <numeric>

namespace duet {

std::size_t plan_memory(std::vector<Block>& blocks, std::size_t alignment) {
  const auto rounded = [alignment](std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; };
  std::vector<std::size_t> order(blocks.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return blocks[a].bytes > blocks[b].bytes; });

  std::vector<const Block*> placed;  // by offset
  std::size_t arena = 0;
  for (const std::size_t index : order) {
    Block& block = blocks[index];
    const std::size_t bytes = rounded(block.bytes);
    std::size_t offset = 0;
    for (const Block* other : placed) {
      const bool together = other->first <= block.last && block.first <= other->last;
      if (!together) continue;
      if (offset + bytes <= other->offset) break;  // fits into the gap before `other`
      offset = std::max(offset, other->offset + rounded(other->bytes));
    }
    block.offset = offset;
    arena = std::max(arena, offset + bytes);
    const auto position = std::upper_bound(placed.begin(), placed.end(), &block,
                                           [](const Block* a, const Block* b) { return a->offset < b->offset; });
    placed.insert(position, &block);
  }
  return arena;
}

}  // namespace duet
