#include "base/detail/device_copy.h"
#include <algorithm>
#include <c10/core/Event.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace duet {

// Written against c10's device-generic interface: no CUDA header, and the same code for any device with streams.
Batch DeviceCopy::to_device(const Batch& batch) {
  const auto from_host = [this](const auto& item) { return item.second.is_cpu() && !device_.is_cpu(); };
  const auto copied = [this](const at::Tensor& t) { return t.to(device_, t.scalar_type(), /*non_blocking=*/true); };
  const NamedTensors& items = batch.items();
  // A copy between two devices is ordered by their current streams, which LibTorch sees to.
  if (std::none_of(items.begin(), items.end(), from_host)) return batch.to(device_, /*non_blocking=*/true);

  const c10::impl::VirtualGuardImpl device(device_.type());
  if (!stream_) stream_ = device.getStreamFromGlobalPool(device_);
  const c10::Stream current = device.getStream(device_);
  Batch moved;
  {
    const c10::StreamGuard on_stream(*stream_);
    for (const auto& item : items) moved.set(item.first, from_host(item) ? copied(item.second) : item.second);
  }
  c10::Event done(device_.type());
  done.record(*stream_);
  done.block(current);
  for (const auto& item : items) {
    const at::Tensor& tensor = moved[item.first];
    if (from_host(item)) {
      // The memory belongs to the copying stream: it must not be given out again while the current one still reads it.
      device.recordDataPtrOnStream(tensor.storage().data_ptr(), current);
    } else if (tensor.device() != device_) {
      moved.set(item.first, copied(tensor));
    }
  }
  return moved;
}

}  // namespace duet
