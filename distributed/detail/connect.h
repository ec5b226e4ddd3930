#pragma once

#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>
#include "distributed/communicator.h"

// The parts of init_distributed(), for the command line and tests.
namespace duet {

// Connects to the other ranks: c10d's TCPStore, Gloo for the CPU, NCCL for CUDA. See init_distributed().
std::shared_ptr<Communicator> connect(const Launch& launch, at::Device device, const ConnectOptions& options = {});
std::shared_ptr<Communicator> connect(const c10::intrusive_ptr<c10d::ProcessGroup>& group, at::Device device,
                                      const ConnectOptions& options = {});

// Whether init_distributed() has connected several ranks in this process, whether or not somebody holds them still.
bool were_ranks_connected();

// For a rank that cannot train, instead of connect(): waits until the others are there, whose connect() throws an error
// of the same type that names this rank. Gives up silently where they cannot be reached: the rank has its own error to
// report.
void fail_to_connect(const Launch& launch, const std::exception_ptr& error, const ConnectOptions& options = {});

// The device of a process that was told `wish` (see parse_device): its own where that is left open. With several GPUs
// that is the one of its local rank; the only one is its own, as launchers that bind GPUs to processes show it. Throws
// ConfigError if it has none.
std::string device_of_rank(const std::string& wish, int64_t local_rank, std::optional<int64_t> visible_gpus = {});

// Of what `variable(name)` gives in place of the environment, a value or nothing.
Launch read_launch(const LaunchFlags& flags,
                   const std::function<std::optional<std::string>(const std::string&)>& variable);

struct GpuOfRank {
  std::string identity;  // see gpu_identity(); empty for a rank without a GPU
  std::string name;      // "cuda:0 of node7"
};

// What is wrong if two ranks train on one GPU, which NCCL would say in words of its own, and late; empty if none do.
std::string find_shared_gpu(const std::vector<GpuOfRank>& of_ranks);

}  // namespace duet
