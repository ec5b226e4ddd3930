#pragma once

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace duet {

// NCCL between the ranks' CUDA devices. Throws ConfigError if this build has none.
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int world_size, at::Device device,
                                                    std::chrono::milliseconds timeout);

// Sets what NCCL and its process group read from the environment, for sums that captured steps hold. What the user has
// set stays. Throws ConfigError for a value that the allocator's settings forbid.
void set_nccl_environment();

// What tells this GPU from any other, on whatever machine and under whatever index: "GPU-" and its UUID, as nvidia-smi
// -L shows it. Empty for another device, and where CUDA does not answer: whoever uses it next will hear why.
std::string gpu_identity(c10::Device device);

}  // namespace duet
