#pragma once

#include <chrono>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace duet {

// NCCL between the ranks' CUDA devices. Throws ConfigError if this build has none. Private to distributed/.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, at::Device device,
                                                    std::chrono::milliseconds timeout);

}  // namespace duet
