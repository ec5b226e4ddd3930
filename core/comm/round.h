#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <string>

namespace duet {

// Finds those who are here now, in a store that may hold what ranks of earlier rounds wrote: every rank lays down a new
// ticket, rank 0 offers a round of the tickets it sees, and the round begins when each rank has found its own ticket in
// it. Returns the name of the round, the same on all ranks; empty if it did not begin in time. Private to core/comm.
std::string find_round(c10d::Store& store, int64_t rank, int64_t world_size, std::chrono::milliseconds timeout);

}  // namespace duet
