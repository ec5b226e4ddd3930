#include "base/error.h"
#include "distributed/detail/nccl_backend.h"

namespace duet {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>&, int, int, at::Device,
                                                    std::chrono::milliseconds) {
  throw ConfigError(
      "[Communicator] found a CUDA device in a build without NCCL, expected one that has it; build duet with a "
      "LibTorch for CUDA "
      "and the headers of NCCL, or train on the CPU");
}

std::string gpu_identity(c10::Device) { return {}; }

}  // namespace duet
