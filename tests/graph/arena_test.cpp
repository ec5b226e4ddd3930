#include "graph/replay/arena.h"
#include <algorithm>
#include <cstring>
#include <optional>
#include <random>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

namespace duet {
namespace {

using Blocks = std::vector<std::pair<c10::Storage, std::size_t>>;

TEST(Arena, IsAsLargeAsItsLargestProgramNeedsAndIsCountedOnce) {
  const auto arena = std::make_shared<Arena>();
  const c10::Storage a = storage_without_memory(100), b = storage_without_memory(100), c = storage_without_memory(64);
  const Arena::Share small(arena, 128, Blocks{{a, 0}});
  EXPECT_EQ(small.bytes(), 128);
  std::memset(a.mutable_data(), 7, 100);
  std::optional<Arena::Share> large(std::in_place, arena, 256, Blocks{{b, 128}, {c, 0}});
  EXPECT_EQ(small.bytes(), 0);
  EXPECT_EQ(large->bytes(), 256);
  EXPECT_EQ(a.data(), c.data()) << "they take turns";
  EXPECT_EQ(static_cast<const char*>(b.data()) - static_cast<const char*>(a.data()), 128);
  EXPECT_EQ(reinterpret_cast<std::uintptr_t>(a.data()) % 64, 0U);
  EXPECT_EQ(static_cast<const char*>(a.data())[99], 7) << "a run may be between two segments";
  const Arena::Share same(arena, 256, {});
  EXPECT_EQ(same.bytes() + large->bytes(), 256);
  large.reset();
  EXPECT_EQ(same.bytes(), 256);
  EXPECT_EQ(static_cast<const char*>(a.data())[99], 7);
}

TEST(Arena, GivesItsPagesBackUntilTheyAreWrittenAgain) {
  constexpr std::size_t kBytes = std::size_t{1} << 20;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), count = kBytes / page - 1;  // whole ones
  const c10::Storage block = storage_without_memory(kBytes);
  const auto resident_pages = [&] {
    const auto begin = (reinterpret_cast<std::uintptr_t>(block.data()) + page - 1) / page * page;
    std::vector<unsigned char> pages(count);
    EXPECT_EQ(mincore(reinterpret_cast<void*>(begin), count * page, pages.data()), 0);
    return std::ranges::count_if(pages, [](unsigned char page) { return (page & 1) != 0; });
  };
  const Arena::Share share(std::make_shared<Arena>(), kBytes, Blocks{{block, 0}});
  for (int round = 0; round < 2; ++round) {
    std::memset(block.mutable_data(), 7, kBytes);
    EXPECT_EQ(resident_pages(), count);
    share.release_pages();
    EXPECT_EQ(resident_pages(), 0);
  }
}

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

TEST(Arena, ShrinksWithItsLargestProgram) {
  const auto arena = std::make_shared<Arena>();
  const c10::Storage a = storage_without_memory(64);
  const Arena::Share small(arena, 64, Blocks{{a, 0}});
  std::optional<Arena::Share> large(std::in_place, arena, std::size_t{1} << 30, Blocks{});
  std::memset(a.mutable_data(), 7, 64);
  large.reset();
  EXPECT_EQ(small.bytes(), 64);
  EXPECT_EQ(static_cast<const char*>(a.data())[63], 7);
}

}  // namespace
}  // namespace duet
