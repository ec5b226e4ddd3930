#include "distributed/detail/broadcast.h"
#include <algorithm>
#include <map>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/unflatten_dense_tensors.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/error.h"
#include "base/log.h"
#include "distributed/detail/collective_ops.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

namespace {

// The tensor without the dimensions that an expand() repeats. A copy into it fills the whole, which would refuse one.
at::Tensor each_element_once(at::Tensor tensor) {
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) tensor = tensor.narrow(dim, 0, 1);
  }
  return tensor;
}

std::string shape_of(const at::Tensor& tensor) {
  const int64_t values = each_element_once(tensor).numel();
  const std::string expanded = values == tensor.numel() ? "" : c10::str(" of ", values, " values");
  return c10::str(tensor.scalar_type(), " ", tensor.sizes(), expanded);
}

}  // namespace

BufferBroadcast::BufferBroadcast(std::shared_ptr<Communicator> communicator) : communicator_(std::move(communicator)) {}

void BufferBroadcast::make_groups(const NamedTensors& buffers) {
  groups_.clear();
  std::map<at::ScalarType, Group> by_type;
  for (const auto& [name, buffer] : buffers) {
    if (buffer.numel() > 0) by_type[buffer.scalar_type()].buffers.push_back(each_element_once(buffer.detach()));
  }
  for (auto& [type, group] : by_type) {
    int64_t count = 0;
    for (const at::Tensor& buffer : group.buffers) count += buffer.numel();
    const at::Tensor flat = at::zeros({count}, group.buffers.front().options());
    group.views = at::unflatten_dense_tensors(flat, group.buffers);
    group.bytes = flat.view(at::kByte);  // for dtypes that no collective knows, such as bool
    groups_.push_back(std::move(group));
  }
}

// A buffer that grows, such as a cache, may do so on one rank alone: the others would then take the wrong part of it.
void BufferBroadcast::agree_on_layout(const NamedTensors& buffers) {
  std::string own;
  for (const auto& [name, buffer] : buffers) own += name + ": " + shape_of(buffer) + "\n";
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

namespace {

void check_same_layout(const NamedTensors& tensors, Communicator& communicator) {
  std::string own;
  for (const auto& [name, tensor] : tensors) {
    own += name + " " + shape_of(tensor) + (tensor.requires_grad() ? "\n" : " (frozen)\n");
  }
  check_same_on_all_ranks<ConfigError>(communicator, own, [](const RankDifference& found) {
    return c10::str("[Distributed] rank ", found.rank, " has another model than rank 0: its first other parameter or ",
                    "buffer is ", found.there, ", rank 0 has ", found.on_first,
                    ", expected the same model everywhere; make it from the same code and config");
  });
}

}  // namespace

void make_same_model(const NamedTensors& tensors, Communicator& communicator) {
  check_same_layout(tensors, communicator);
  const at::NoGradGuard no_grad;
  std::string own;
  for (const auto& item : tensors) own += bits_hash(item.second) + "\n";
  const std::vector<std::string> all = communicator.all_gather(own);
  if (std::all_of(all.begin(), all.end(), [&](const std::string& rank) { return rank == all.front(); })) return;
  for (const auto& item : tensors) {
    at::Tensor live = each_element_once(item.second.detach());
    if (live.numel() == 0) continue;
    const at::Tensor values = at::empty(live.sizes(), live.options()).copy_(live);
    const at::Tensor bytes = values.view({-1}).view(at::kByte);
    communicator.start_broadcast(bytes, 0);
    communicator.finish(bytes);
    live.copy_(values);
  }
  if (communicator.is_main()) {
    log_warning(
        "[Distributed] the ranks' models start from different values; those of rank 0 are used everywhere. Seed every "
        "rank alike, or load the same weights");
  }
}

}  // namespace duet
