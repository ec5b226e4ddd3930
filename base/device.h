#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include "state_dict.h"

namespace duet {

// "auto" (CUDA if there is a device, else CPU), "cpu", "cuda" or "cuda:<index>".
// Throws ConfigError that says what this machine has.
c10::Device parse_device(const std::string& text);

bool cuda_available();

// Whether this LibTorch is one with CUDA, be there a device or not.
bool built_with_cuda();

// Seeds the default generators of the CPU and of every CUDA device, as torch.manual_seed does.
void seed_all(uint64_t seed);

// What the CPU's default generator was seeded with.
uint64_t default_seed();
// A seed for rank `rank` of a group that was given `seed`; `seed` itself for rank 0.
uint64_t rank_seed(uint64_t seed, int64_t rank);

// Of kernels those that give the same bits in every run, for the whole process, as
// torch.use_deterministic_algorithms(True).
void use_deterministic_kernels();

// State of the default generators: "cpu", and "cuda.<index>" for the devices there are.
StateDict random_state();
// Throws CheckpointError if a generator is missing in `state`.
void set_random_state(const StateDict& state);

// The generators of a language that duet is called from, one tensor for all. A trainer's state has them beside
// random_state(), as "host".
struct HostGenerators {
  std::function<at::Tensor()> state;
  std::function<void(const at::Tensor&)> set_state;
};
// For the whole process, before the first trainer.
void set_host_generators(HostGenerators generators);
// random_state() and set_random_state() with them. A state without them leaves them as they are.
StateDict all_random_state();
void set_all_random_state(const StateDict& state);

// While it lives, the CPU's default generator starts from `seed`; after that it goes on as if nothing was drawn. For
// foreign code that can draw from that generator only. Not for two threads at once.
class CpuSeedGuard {
 public:
  explicit CpuSeedGuard(uint64_t seed);
  ~CpuSeedGuard();
  CpuSeedGuard(const CpuSeedGuard&) = delete;
  CpuSeedGuard& operator=(const CpuSeedGuard&) = delete;

 private:
  at::Tensor before_;
};

// Most memory in use since reset_peak_bytes(): of the process on the CPU, of LibTorch's allocator on a GPU.
int64_t peak_bytes(at::Device device);
void reset_peak_bytes(at::Device device);
// Memory that is free: of the GPU, or on the CPU of the machine, at most what a container's limit and `ulimit -v`
// leave.
int64_t free_bytes(at::Device device);

}  // namespace duet
