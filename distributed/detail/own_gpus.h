#pragma once

#include <string>
#include <vector>

namespace duet {

struct GpuOfRank {
  std::string identity;  // see gpu_identity(); empty for a rank without a GPU
  std::string name;      // "cuda:0 of node7"
};

// What is wrong if two ranks train on one GPU, which NCCL would say in words of its own, and late; empty if none do.
std::string find_shared_gpu(const std::vector<GpuOfRank>& of_ranks);

}  // namespace duet
