#include "base/error.h"
#include "graph/cuda/capture_backend.h"

namespace duet {

std::unique_ptr<CaptureDevice> make_cuda_capture_device(c10::Device device) {
  throw ConfigError("[GraphTrainer] found device " + device.str() +
                    ", but this duet was built without CUDA; use device cpu, or build against a LibTorch with CUDA");
}

}  // namespace duet
