#include <duet/graph/capture_method.h>

#include <duet/graph/cuda/cuda_step.h>
#include <duet/graph/tape_step.h>

namespace duet {

CaptureMethod capture_method_for(at::Device device, Fuse fuse) {
  if (!device.is_cuda()) {
    return {1, [fuse](const Window& example) { return std::make_unique<TapeStep>(example, fuse); }, nullptr};
  }
  const std::shared_ptr<CaptureDevice> shared = make_cuda_capture_device(device);
  return {3, [shared](const Window& example) { return std::make_unique<CudaStep>(example, shared->new_backend()); }, shared};
}

}  // namespace duet
