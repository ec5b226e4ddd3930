#pragma once

#include <chrono>
#include <string>
#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include "distributed/communicator.h"

namespace duet {

// What a rank says of itself.
struct Participant {
  at::Device device = at::kCPU;  // that trains
  std::string failure{};         // packed_error() of why it cannot; then there is no device
};

// Waits in `store` until all ranks of the launch are there, and rank 0 has found that they fit together. Returns the
// part of the store that is this group's own: a prefix of keys that nobody used before. A launcher's store outlives the
// processes, and says nothing of its own when it starts them again in another number.
//
// Throws on every rank: ConfigError if two say they are the same, differ in their world size or kind of device, or
// share a GPU; an error of the type of the failure if one has failed; PeerError naming the missing ones if some do not
// come in time.
std::string rendezvous(const Launch& launch, const Participant& self, const c10::intrusive_ptr<c10d::Store>& store,
                       std::chrono::milliseconds timeout);

}  // namespace duet
