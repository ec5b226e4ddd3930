#include <duet/core/comm/nccl_backend.h>

#include <stdlib.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace duet {

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, at::Device device,
                                                    std::chrono::milliseconds timeout) {
  // A watchdog that asks for the state of work within a captured graph would break the capture (PyTorch's notes on CUDA
  // graphs); a value set by the user stays.
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
  // Buffers of a graph are registered by all ranks or none; ranks whose last batches differ in shape capture apart.
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  auto backend = c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, world_size, options);
  backend->eagerConnectSingleDevice(device);
  return backend;
}

}  // namespace duet
