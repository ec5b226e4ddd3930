#include "graph/replay/memory_plan.h"
#include <algorithm>
#include <random>
#include <gtest/gtest.h>

namespace duet {
namespace {

TEST(MemoryPlan, BlocksInUseTogetherNeverOverlap) {
  std::mt19937 random(1);
  for (int trial = 0; trial < 200; ++trial) {
    std::vector<Block> blocks(1 + random() % 60);
    std::size_t sum = 0;
    for (Block& block : blocks) {
      block.bytes = random() % 3000;
      block.first = random() % 40;
      block.last = block.first + random() % 10;
      sum += (block.bytes + 63) / 64 * 64;
    }
    const std::size_t arena = plan_memory(blocks, 64);
    EXPECT_LE(arena, sum);
    for (const Block& a : blocks) {
      EXPECT_EQ(a.offset % 64, 0U);
      EXPECT_LE(a.offset + a.bytes, arena);
      for (const Block& b : blocks) {
        const bool together = a.first <= b.last && b.first <= a.last;
        const bool apart = a.offset + a.bytes <= b.offset || b.offset + b.bytes <= a.offset;
        if (&a == &b || !together || a.bytes == 0 || b.bytes == 0) continue;
        EXPECT_TRUE(apart);
      }
    }
  }
}

TEST(MemoryPlan, BlocksThatFollowEachOtherShareMemory) {
  std::vector<Block> blocks;
  for (std::size_t i = 0; i < 100; ++i) blocks.push_back({640, 2 * i, 2 * i + 1, 0});
  EXPECT_EQ(plan_memory(blocks, 64), 640U);
}

TEST(MemoryPlan, NoBlocksNeedNoMemory) {
  std::vector<Block> none;
  EXPECT_EQ(plan_memory(none, 64), 0U);
}

}  // namespace
}  // namespace duet
