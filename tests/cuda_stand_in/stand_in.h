#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

// A CUDA runtime without a device, for tests: the wheel's own allocator, streams, generators and CUDAGraph run over it.
// Copies and fills are made in memory that the host cannot touch (it faults, as with a device), kernels do nothing, and
// the rules of a capture are kept as a device keeps them. It must come before libcudart: linked first, or in
// LD_PRELOAD. What it can't show: results of kernels, their time and their use of memory; what cuDNN, NCCL and cuSOLVER
// do.

namespace duet::testing::cuda {

// Calls of `name` so far (cudaMalloc, ...); kernels count as their launch call.
int64_t count(const std::string& name);
using Counts = std::map<std::string, int64_t>;
Counts counts();
// Those that were made.
Counts calls_since(const Counts& before);

// What broke a rule of a capture, such as a call that waits. Empties the list.
std::vector<std::string> take_violations();
// Kernels and copies that went to another stream while some stream captured: a graph would lack them.
int64_t outside_launches();
bool is_capturing();

// From now on calls are written down by name; take_log() empties the list.
void write_log(bool on);
std::vector<std::string> take_log();

// Makes the `nth` call from now on (1: the next) of `name` fail with `error`, once; "*" means any call that can fail.
enum class Calls { kAll, kWithinCaptures };
void fail(const std::string& name, int64_t nth, int error, Calls calls = Calls::kAll);
// What failed that way; empty if nothing did yet.
std::string failed_call();
// Calls that fail("*", ...) counts.
int64_t calls_that_can_fail();

// Memory of the device; beyond it cudaMalloc fails.
void set_memory(int64_t bytes);
int64_t used_memory();

}  // namespace duet::testing::cuda
