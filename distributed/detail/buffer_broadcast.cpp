#include "distributed/detail/buffer_broadcast.h"
#include <algorithm>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "distributed/detail/collective_ops.h"
#include "distributed/detail/each_element_once.h"
#include "distributed/detail/layout_hash.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

BufferBroadcast::BufferBroadcast(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

void BufferBroadcast::make_groups(const NamedTensors& buffers) {
  groups_.clear();
  for (const auto& [name, buffer] : buffers) {
    if (buffer.numel() == 0) continue;
    auto group = std::find_if(groups_.begin(), groups_.end(), [&](const Group& other) {
      return other.buffers.front().scalar_type() == buffer.scalar_type();
    });
    if (group == groups_.end()) group = groups_.insert(group, Group());
    group->buffers.push_back(each_element_once(buffer.detach()));
  }
  for (Group& group : groups_) {
    int64_t count = 0;
    for (const at::Tensor& buffer : group.buffers) count += buffer.numel();
    const at::Tensor flat = at::zeros({count}, group.buffers.front().options());
    int64_t offset = 0;
    for (const at::Tensor& buffer : group.buffers) {
      group.views.push_back(flat.narrow(0, offset, buffer.numel()).view(buffer.sizes()));
      offset += buffer.numel();
    }
    group.bytes = flat.view(at::kByte);  // for dtypes that no collective knows, such as bool
  }
}

// A buffer that grows, such as a cache, may do so on one rank alone: the others would then take the wrong part of it.
void BufferBroadcast::agree_on_layout(const NamedTensors& buffers) {
  std::string own;
  for (const auto& [name, buffer] : buffers)
    own += c10::str(name, ": ", buffer.scalar_type(), " ", buffer.sizes(), "\n");
  if (own == agreed_ && !rechecks_) return;
  communicator_->report("agreement on buffers");  // a rank that comes here alone waits for the others until the timeout
  check_same_on_all_ranks<ConfigError>(*communicator_, own, [](const RankDifference& found) {
    return c10::str("[Distributed] rank ", found.rank, " has other buffers than rank 0 (", found.there, "; on rank 0 ",
                    found.on_first, "), expected the same everywhere after every step; change their shapes on all ",
                    "ranks alike, keep what differs out of the buffers, or set broadcast_buffers to false");
  });
  agreed_ = own;
  communicator_->report("step");
}

uint64_t BufferBroadcast::layout() const {
  uint64_t hash = 0;
  for (const at::Tensor& buffer : last_) {
    hash = hash_with(hash_with(hash, static_cast<uint64_t>(buffer.scalar_type())), static_cast<uint64_t>(buffer.dim()));
    for (const int64_t extent : buffer.sizes()) hash = hash_with(hash, static_cast<uint64_t>(extent));
  }
  return hash;
}

void BufferBroadcast::run(const NamedTensors& buffers) {
  if (buffers.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<std::pair<const void*, int64_t>> present;
  for (const auto& item : buffers) {
    present.emplace_back(item.second.storage().unsafeGetStorageImpl(), item.second.numel());
  }
  const bool changed = present != known_;
  if (changed || rechecks_) agree_on_layout(buffers);
  rechecks_ = false;
  if (changed) make_groups(buffers);
  known_ = std::move(present);
  last_.clear();
  for (const auto& item : buffers) last_.push_back(item.second);
  for (Group& group : groups_) {
    at::_foreach_copy_(group.views, group.buffers);
    start_broadcast_(group.bytes, *communicator_, 0);
  }
  for (Group& group : groups_) {
    finish_(group.bytes, *communicator_);
    at::_foreach_copy_(group.buffers, group.views);
  }
}

}  // namespace duet
