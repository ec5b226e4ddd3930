#pragma once

#include <functional>
#include <memory>
#include "graph/cuda/capture_backend.h"
#include "graph/detail/captured_step.h"
#include "graph/graph_options.h"
#include "graph/kernels/bitexact_kernel.h"

namespace duet {

// How steps are captured on a device.
struct CaptureMethod {
  int64_t eager_steps = 1;  // of a signature before its capture
  std::function<std::unique_ptr<CapturedStep>(const MicroBatches& example)> make_step;
  std::shared_ptr<CaptureDevice> device;  // null on the CPU; outlives the steps
};

// CPU: CpuStep after one eager step. CUDA: CudaStep after three, in which libraries set themselves up.
CaptureMethod capture_method_for(at::Device device, Fuse fuse = Fuse::kExact);

CaptureMethod cpu_capture_method(const KernelPasses& passes);

}  // namespace duet
