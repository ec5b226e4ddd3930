#pragma once

#include <duet/core/state_dict.h>

#include <ATen/core/Tensor.h>
#include <cstdint>

namespace duet {

// Seeds the default generators of the CPU and of every CUDA device, as torch.manual_seed does.
void seed_all(uint64_t seed);

// State of the default generators: "cpu", and "cuda.<index>" for the devices there are.
StateDict random_state();
// Throws CheckpointError if a generator is missing in `state`.
void set_random_state(const StateDict& state);

}  // namespace duet
