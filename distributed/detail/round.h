#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace duet {

struct Round {
  std::string name{};              // the same on all ranks; empty: it did not begin in time
  std::vector<int64_t> missing{};  // then: the ranks that did not come
  bool twice = false;              // or another process said it was this rank
};

// Finds those who are here now, in a store that may hold what ranks of earlier rounds wrote: every rank lays down a new
// ticket, rank 0 offers a round of the tickets it sees, and the round begins when each rank has found its own ticket in
// it. Private to distributed/.
Round find_round(c10d::Store& store, int64_t rank, int64_t world_size, std::chrono::steady_clock::time_point deadline);

}  // namespace duet
