#include "distributed/detail/same_on_all_ranks.h"
#include <sstream>

namespace duet {

std::pair<std::string, std::string> first_different_lines(const std::string& a, const std::string& b) {
  std::istringstream one(a), other(b);
  std::string x, y;
  while (true) {
    const bool more = static_cast<bool>(std::getline(one, x)), too = static_cast<bool>(std::getline(other, y));
    if (!more) x = "nothing";
    if (!too) y = "nothing";
    if (x != y || (!more && !too)) return {x, y};
  }
}

std::optional<RankDifference> first_difference(const std::vector<std::string>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    auto [there, on_first] = first_different_lines(all[rank], all[0]);
    return RankDifference{rank, std::move(there), std::move(on_first)};
  }
  return std::nullopt;
}

}  // namespace duet
