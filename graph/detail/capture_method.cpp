#include "graph/detail/capture_method.h"
#include "graph/cuda/cuda_step.h"
#include "graph/replay/cpu_step.h"

namespace duet {

CaptureMethod capture_method_for(at::Device device, Fuse fuse) {
  if (!device.is_cuda()) {
    return {1, [fuse](const MicroBatches& example) { return std::make_unique<CpuStep>(example, fuse); }, nullptr};
  }
  const std::shared_ptr<CaptureDevice> shared = make_cuda_capture_device(device);
  const auto make_step = [shared](const MicroBatches& example) {
    return std::make_unique<CudaStep>(example, shared->new_backend());
  };
  return {3, make_step, shared};
}

}  // namespace duet
