#include <cstdlib>
#include <string_view>
#include <c10/core/AllocatorConfig.h>
#include <stdlib.h>
#include "base/error.h"
#include "distributed/detail/nccl_backend.h"

namespace duet {

void set_nccl_environment() {
  // A watchdog that asks for the state of work within a captured graph would break the capture (PyTorch's notes on CUDA
  // graphs).
  setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0", /*overwrite=*/0);
  // Buffers of a graph are registered by all ranks or none; ranks whose last batches differ in shape capture apart.
  setenv("NCCL_GRAPH_REGISTER", "0", /*overwrite=*/0);
  // Registered memory must stay where it is, and expandable segments are mapped piece by piece.
  const bool registers = std::string_view(std::getenv("NCCL_GRAPH_REGISTER")) != "0";
  require<ConfigError>(!registers || !c10::CachingAllocator::AcceleratorAllocatorConfig::use_expandable_segments(),
                       "[Communicator] found NCCL_GRAPH_REGISTER set beside expandable_segments of the allocator, "
                       "expected 0; unset it, or take expandable_segments out of PYTORCH_ALLOC_CONF");
}

}  // namespace duet
