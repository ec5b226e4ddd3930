#pragma once

#include <optional>
#include <c10/core/Stream.h>
#include "base/batch.h"

namespace duet {

// Moves batches to one device. Where the device has streams, host tensors are copied on a stream of their own, so that
// the copies of the next step run beside the kernels of this one; the stream that is current waits for them, the host
// does not. From memory that is not page-locked a copy holds the host up, but no longer behind the kernels before it.
// Private to the trainer.
class DeviceCopy {
 public:
  explicit DeviceCopy(at::Device device) : device_(device) {}

  // `batch` on the device, ready for the current stream; tensors that are there already are shared.
  Batch to_device(const Batch& batch);

 private:
  at::Device device_;
  std::optional<c10::Stream> stream_;  // taken at the first copy: a trainer that never copies needs none
};

}  // namespace duet
