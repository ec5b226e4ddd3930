#pragma once

#include <functional>
#include <memory>
#include "graph/cuda/capture_backend.h"
#include "graph/graph_options.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/replay/segment_replay.h"

namespace duet {

// How steps are captured on a device.
struct CaptureMethod {
  int64_t eager_steps = 1;  // of a signature before its capture
  std::function<std::unique_ptr<SegmentReplay>()> make_replay;
  std::shared_ptr<CaptureDevice> device;  // null on the CPU; outlives the steps
};

// CPU: CpuProgram after one eager step. CUDA: CudaReplay after three, in which libraries set themselves up.
CaptureMethod capture_method_for(at::Device device, Fuse fuse = Fuse::kExact);

CaptureMethod cpu_capture_method(const KernelPasses& passes);

}  // namespace duet
