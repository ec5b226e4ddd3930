#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>
#include "distributed/communicator.h"

namespace duet {

// The lines in which two texts differ first; "nothing" where one of them has ended.
std::pair<std::string, std::string> first_different_lines(const std::string& a, const std::string& b);

// What the first rank that differs from rank 0 has, and what rank 0 has in its place; see first_different_lines().
struct RankDifference {
  std::size_t rank = 0;
  std::string there, on_first;
};

// Of the texts of all ranks. Nothing if they are the same.
std::optional<RankDifference> first_difference(const std::vector<std::string>& all);

// Gathers the texts of all ranks; throws E(error(difference)) on all of them unless they are the same. Private to duet.
template <class E, class Text>
void check_same_on_all_ranks(Communicator& ranks, const std::string& own, const Text& error) {
  if (const auto difference = first_difference(ranks.all_gather(own))) throw E(error(*difference));
}

}  // namespace duet
