#include "graph/detail/capture_method.h"
#include "graph/cuda/cuda_replay.h"
#include "graph/replay/cpu_program.h"

namespace duet {

// Of one executor: a hook within a step may predict.
CaptureMethod cpu_capture_method(const KernelPasses& passes) {
  return {1, [passes, arena = std::make_shared<Arena>()] { return std::make_unique<CpuProgram>(passes, arena); },
          nullptr};
}

CaptureMethod capture_method_for(at::Device device, Fuse fuse) {
  if (!device.is_cuda()) return cpu_capture_method(fuse == Fuse::kExact ? bitexact_passes() : KernelPasses());
  const std::shared_ptr<CaptureDevice> shared = make_cuda_capture_device(device);
  return {3, [shared] { return std::make_unique<CudaReplay>(shared->new_backend()); }, shared};
}

}  // namespace duet
