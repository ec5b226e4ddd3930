#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>
#include <c10/core/Storage.h>

namespace duet {

// A block of memory that is in use from the op `first` to the op `last`, both included.
struct Block {
  std::size_t bytes = 0;
  std::size_t first = 0, last = 0;
  std::size_t offset = 0;  // result of plan_memory
};

// Gives every block an offset (a multiple of `alignment`) so that no two in use at the same op overlap. Largest first,
// each at the lowest offset that is free. Returns the bytes that all of them need.
std::size_t plan_memory(std::vector<Block>& blocks, std::size_t alignment);

// A storage whose memory comes later.
c10::Storage storage_without_memory(std::size_t bytes, c10::Device device = c10::kCPU);

// Memory in which programs take turns: one of them runs at a time, and what it leaves there nobody reads. As large as
// the one needs that needs most.
class Arena {
 public:
  // What one program has of it.
  class Share {
   public:
    // Gives the storages the memory at these offsets, for as long as it lives.
    Share(std::shared_ptr<Arena> arena, std::size_t bytes, std::vector<std::pair<c10::Storage, std::size_t>> blocks);
    ~Share();
    Share(const Share&) = delete;
    Share& operator=(const Share&) = delete;

    // What would be free without it as far as the arena is cut to size: all of it for the program that needs most.
    int64_t bytes() const;
    // Those of the whole arena, whose bytes it returns, to the system. What lies there is lost: not between two
    // segments of a program.
    std::size_t release_pages() const;

   private:
    friend class Arena;
    void point() const;

    std::shared_ptr<Arena> arena_;
    std::size_t bytes_;
    std::vector<std::pair<c10::Storage, std::size_t>> blocks_;
  };

 private:
  const Share* largest() const;
  void fit();

  std::vector<const Share*> shares_;
  c10::DataPtr memory_;
  std::size_t bytes_ = 0;
};

}  // namespace duet
