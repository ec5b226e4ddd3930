#include <duet/core/comm/same_data.h>

#include <c10/util/StringUtil.h>
#include <duet/core/comm/text_difference.h>
#include <duet/core/error.h>

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace duet {

namespace {

const std::string kNoShare = "no share\n";

std::string first_line(int64_t rank, int64_t world_size) { return c10::str("rank ", rank, " of ", world_size, "\n"); }

std::string text_of(const DataSource& data) {
  const std::optional<DataShare> share = data.share();
  return share ? first_line(share->rank, share->world_size) + share->order : kNoShare + values_text(data.state_dict());
}

bool is_shared(const std::string& text) { return text.rfind(kNoShare, 0) != 0; }

void check_who(const std::vector<std::string>& all, const char* what) {
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const std::string expected = first_line(static_cast<int64_t>(rank), static_cast<int64_t>(all.size()));
    if (all[rank].rfind(expected, 0) == 0) continue;
    const std::string found = all[rank].substr(0, all[rank].find('\n'));
    throw ConfigError(c10::str("[Distributed] the ", what, " data of rank ", rank, " are ",
                               is_shared(all[rank]) ? "the part of " + found : "not shared with the other ranks",
                               ", expected the part of ", expected.substr(0, expected.size() - 1),
                               "; give every rank a DistributedSampler with the communicator's rank() and world_size()"));
  }
}

}  // namespace

bool check_same_data(const DataSource& data, Communicator& ranks, const char* what) {
  const std::vector<std::string> all = ranks.all_gather(text_of(data));
  if (std::none_of(all.begin(), all.end(), is_shared)) {
    return all[0] != kNoShare && std::all_of(all.begin(), all.end(), [&](const auto& text) { return text == all[0]; });
  }
  check_who(all, what);
  const auto order = [&all](std::size_t rank) { return all[rank].substr(all[rank].find('\n') + 1); };
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (order(rank) == order(0)) continue;
    const auto [there, here] = first_different_lines(order(rank), order(0));
    throw ConfigError(c10::str("[Distributed] rank ", rank, " reads the ", what, " data otherwise than rank 0 (", there,
                               "; on rank 0 ", here, "), expected the same samples in the same order, of which each ",
                               "rank takes its part; give all ranks the same dataset, seed and batch size"));
  }
  return false;
}

}  // namespace duet
