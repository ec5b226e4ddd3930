#include "core/detail/same_data.h"
#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <vector>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

namespace {

// The first line of what a rank says; the others are DataShard::order.
constexpr const char* kNoShare = "not shared";

std::string part(int64_t rank, int64_t world_size) { return c10::str("that of rank ", rank, " of ", world_size); }

std::string text_of(const std::optional<DataShard>& share) {
  return share ? part(share->rank, share->world_size) + "\n" + share->order : kNoShare;
}

std::string part_of(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string order_of(const std::string& text) { return text.substr(text.find('\n') + 1); }

// Every part once; which rank takes which does not matter.
void check_parts(const std::vector<std::string>& all, const char* what) {
  const auto count = static_cast<int64_t>(all.size());
  std::map<std::string, int64_t> reader;
  for (int64_t rank = 0; rank < count; ++rank) reader[part(rank, count)] = -1;
  for (int64_t rank = 0; rank < count; ++rank) {
    const std::string own = part_of(all[static_cast<std::size_t>(rank)]);
    const auto known = reader.find(own);
    std::string found;
    if (known == reader.end()) {
      found = own;
    } else if (known->second >= 0) {
      found = c10::str(own, ", as of rank ", known->second);
    } else {
      known->second = rank;
      continue;
    }
    throw ConfigError(c10::str("[Distributed] the part of the ", what, " data that rank ", rank, " reads is: ", found,
                               ", expected one of ", count, " that no other rank reads; leave the ",
                               "sampler to the DataLoader, or give every rank a DistributedSampler of its own rank()"));
  }
}

}  // namespace

void check_same_data(const DataSource& data, Communicator& ranks, const char* what) {
  const std::vector<std::string> all = ranks.all_gather(text_of(data.shard()));
  if (std::all_of(all.begin(), all.end(), [](const std::string& text) { return text == kNoShare; })) return;
  check_parts(all, what);
  std::vector<std::string> orders(all.size());
  std::transform(all.begin(), all.end(), orders.begin(), order_of);
  const std::optional<RankDifference> found = first_difference(orders);
  if (!found) return;
  throw ConfigError(c10::str("[Distributed] rank ", found->rank, " reads the ", what, " data otherwise than rank 0 (",
                             found->there, "; on rank 0 ", found->on_first, "), expected the same samples in the same ",
                             "order, of which each rank takes its part; give all ranks the same dataset, seed and ",
                             "batch size, and load the same checkpoint on all"));
}

}  // namespace duet
