#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>
#include "base/state_dict.h"
#include "distributed/communicator.h"

namespace duet {

// What the first rank that differs from rank 0 has, and what rank 0 has in its place: the lines in which their texts
// differ first, "nothing" where one of them has ended.
struct RankDifference {
  std::size_t rank = 0;
  std::string there, on_first;
};

// Of the texts of all ranks. Nothing if they are the same.
std::optional<RankDifference> first_difference(const std::vector<std::string>& all);

// Gathers the texts of all ranks; throws E(error(difference)) on all of them unless they are the same.
template <class E, class Text>
void check_same_on_all_ranks(Communicator& ranks, const std::string& own, const Text& error) {
  if (const auto difference = first_difference(ranks.all_gather(own))) throw E(error(*difference));
}

// One number of many, one after the other: begin with 0. Small numbers change all bits of it, so any part may be kept.
inline uint64_t hash_with(uint64_t hash, uint64_t value) {
  hash = (hash ^ (value + 0x9e3779b97f4a7c15)) * 0xff51afd7ed558ccd;
  return hash ^ (hash >> 32);
}

// Every rank's small state, by rank: tensors on the host (states of generators, buffers).
std::vector<StateDict> gather_state(Communicator& communicator, const StateDict& own);
// Rank 0's state on all ranks, of any size: contiguous tensors on the host, sent in pieces. The others give nothing.
StateDict broadcast_state(Communicator& ranks, const StateDict& own);

}  // namespace duet
