#pragma once

#include <cstddef>
#include <vector>

namespace duet {

// A block of memory that is in use from the step `first` to the step `last`, both included.
struct Block {
  std::size_t bytes = 0;
  std::size_t first = 0;
  std::size_t last = 0;
  std::size_t offset = 0;  // result of plan_memory
};

// Gives every block an offset (a multiple of `alignment`) in one arena so that no two blocks in use at the same step
// overlap. Largest first, each at the lowest offset that is free. Returns the arena's size in bytes.
std::size_t plan_memory(std::vector<Block>& blocks, std::size_t alignment);

}  // namespace duet
