#include "graph/replay/arena.h"
#include <algorithm>
#include <cstring>
#include <numeric>
#include <c10/core/Allocator.h>
#include <c10/util/ScopeExit.h>
#include <sys/mman.h>
#include <unistd.h>

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

c10::Storage storage_without_memory(std::size_t bytes, c10::Device device) {
  return {c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(nullptr, device), c10::GetAllocator(c10::kCPU),
          /*resizable=*/false};
}

Arena::Share::Share(std::shared_ptr<Arena> arena, std::size_t bytes,
                    std::vector<std::pair<c10::Storage, std::size_t>> blocks)
    : arena_(std::move(arena)), bytes_(bytes), blocks_(std::move(blocks)) {
  arena_->shares_.push_back(this);
  auto leaves = c10::make_scope_exit([this] { arena_->shares_.pop_back(); });
  arena_->fit();
  leaves.release();
  point();
}

// Where there is no memory for a smaller arena, the others keep the larger one.
Arena::Share::~Share() {
  std::erase(arena_->shares_, this);
  try {
    arena_->fit();
  } catch (const c10::Error&) {
  }
}

int64_t Arena::Share::bytes() const { return arena_->largest() == this ? static_cast<int64_t>(arena_->bytes_) : 0; }

std::size_t Arena::Share::release_pages() const {
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  std::size_t rest = arena_->bytes_;
  void* begin = arena_->memory_.get();
  if (std::align(page, page, begin, rest) != nullptr) madvise(begin, rest / page * page, MADV_DONTNEED);
  return arena_->bytes_;
}

void Arena::Share::point() const {
  for (const auto& [storage, offset] : blocks_) {
    void* address = static_cast<char*>(arena_->memory_.get()) + offset;
    storage.unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(address, storage.device()));
  }
}

const Arena::Share* Arena::largest() const {
  const auto found = std::ranges::max_element(shares_, {}, [](const Share* share) { return share->bytes_; });
  return found == shares_.end() ? nullptr : *found;
}

// What lies there stays: a program may be between two segments.
void Arena::fit() {
  const std::size_t wanted = shares_.empty() ? 0 : largest()->bytes_;
  if (wanted == bytes_) return;
  const c10::DataPtr before = std::exchange(memory_, c10::GetAllocator(c10::kCPU)->allocate(wanted));
  if (const std::size_t kept = std::min(wanted, bytes_); kept > 0) std::memcpy(memory_.get(), before.get(), kept);
  bytes_ = wanted;
  for (const Share* share : shares_) share->point();
}

}  // namespace duet
