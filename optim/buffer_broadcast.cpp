#include <duet/optim/buffer_broadcast.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/zeros.h>
#include <duet/core/comm/collective_ops.h>

#include <algorithm>

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
    group->buffers.push_back(buffer.detach());
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

void BufferBroadcast::run(const NamedTensors& buffers) {
  if (buffers.empty()) return;
  const at::NoGradGuard no_grad;
  std::vector<const void*> present;
  for (const auto& item : buffers) present.push_back(item.second.storage().unsafeGetStorageImpl());
  if (present != known_) make_groups(buffers);
  known_ = std::move(present);
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
