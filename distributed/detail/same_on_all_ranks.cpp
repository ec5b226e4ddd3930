#include "distributed/detail/same_on_all_ranks.h"
#include <algorithm>
#include <cstring>
#include <sstream>
#include <c10/util/StringUtil.h>
#include <unistd.h>
#include "base/error.h"
#include "distributed/detail/packed_state.h"

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

std::vector<StateDict> gather_state(Communicator& communicator, const StateDict& own) {
  std::vector<StateDict> all;
  for (const std::string& bytes : communicator.all_gather(pack_state(own))) all.push_back(unpack_state(bytes));
  return all;
}

namespace {

constexpr uint64_t kPiece = uint64_t{32} << 20;  // of a state that is sent: neither all at once nor tensor by tensor

uint64_t machine_memory() {
  return static_cast<uint64_t>(::sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(::sysconf(_SC_PAGE_SIZE));
}

// Goes through the bytes of a state in pieces, wherever its tensors begin and end.
class SpanCursor {
 public:
  explicit SpanCursor(const StateDict& state) : spans_(tensor_spans(state)) {}

  uint64_t left() const {
    uint64_t bytes = 0;
    for (std::size_t i = span_; i < spans_.size(); ++i) bytes += spans_[i].second;
    return bytes - done_;
  }
  // Calls `move(part of a tensor, where it is in the piece, bytes)` for the next bytes.
  template <class Move>
  void next(uint64_t bytes, const Move& move) {
    for (uint64_t at = 0; at < bytes;) {
      const auto& [data, size] = spans_[span_];
      const uint64_t count = std::min(bytes - at, size - done_);
      if (count > 0) move(data + done_, at, count);
      at += count;
      done_ += count;
      if (done_ == size) ++span_, done_ = 0;
    }
  }

 private:
  std::vector<std::pair<char*, uint64_t>> spans_;
  std::size_t span_ = 0;
  uint64_t done_ = 0;  // of that span
};

}  // namespace

StateDict broadcast_state(Communicator& ranks, const StateDict& own) {
  if (ranks.world_size() == 1) return own;
  const bool sends = ranks.is_main();
  const std::string outline = ranks.broadcast(sends ? pack_outline(own) : std::string());
  StateDict state = sends ? own : unpack_outline(outline, machine_memory());
  SpanCursor cursor(state);
  for (uint64_t left = cursor.left(); left > 0;) {
    std::string piece(sends ? std::min(left, kPiece) : 0, '\0');
    const uint64_t expected = std::min(left, kPiece);
    if (sends)
      cursor.next(expected, [&](const char* from, uint64_t at, uint64_t n) { std::memcpy(&piece[at], from, n); });
    piece = ranks.broadcast(piece);
    require<PeerError>(piece.size() == expected,
                       c10::str("[Communicator] rank 0 sent ", piece.size(), " bytes of a state, expected ", expected));
    if (!sends) cursor.next(expected, [&](char* to, uint64_t at, uint64_t n) { std::memcpy(to, &piece[at], n); });
    left -= expected;
  }
  return state;
}

}  // namespace duet
