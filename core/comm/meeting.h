#pragma once

#include <ATen/core/Tensor.h>
#include <duet/core/comm/launch.h>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace duet {

// Waits in `store` until all ranks of the launch are there and fit together. Returns the part of the store that is this
// meeting's own: a prefix of keys that nobody used before. A launcher's store outlives the processes, and says nothing
// of its own when it starts them anew in another number.
//
// Throws ConfigError on every rank if two say they are the same, differ in their world size or kind of device, or share
// a GPU, and PeerError naming the missing ones if some do not come in time. Private to core/comm.
std::string meet(const Launch& launch, at::Device device, const c10::intrusive_ptr<c10d::Store>& store,
                 std::chrono::milliseconds timeout);

}  // namespace duet
