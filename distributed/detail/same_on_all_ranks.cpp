#include "distributed/detail/same_on_all_ranks.h"
#include <algorithm>
#include <cstring>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include "base/detail/different_lines.h"
#include "base/error.h"
#include "distributed/detail/packed_state.h"

namespace duet {

std::optional<RankDifference> first_difference(const std::vector<std::string>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    auto [there, on_first] = first_different_lines(all[rank], all[0]);
    return RankDifference{rank, std::move(there), std::move(on_first)};
  }
  return std::nullopt;
}

namespace {

constexpr std::size_t kSmall = std::size_t{64} << 10;  // what goes with the names
constexpr std::size_t kPiece = std::size_t{32} << 20;  // of a tensor beyond that: never all of it at once

// With the small tensors, and of the others names, types and shapes: those of a single element.
StateDict outline_of(const StateDict& state) {
  StateDict outline;
  for (const auto& [name, tensor] : state.tensors()) {
    const bool is_small = tensor.nbytes() <= kSmall;
    outline.set(name, is_small ? tensor.clone() : at::zeros({}, tensor.options()).expand(tensor.sizes()));
  }
  for (const auto& [name, value] : state.values()) outline.set(name, value);
  return outline;
}

void broadcast_bytes(Communicator& ranks, char* data, std::size_t size) {
  for (std::size_t at = 0; at < size; at += kPiece) {
    const std::size_t count = std::min(kPiece, size - at);
    const std::string piece = ranks.broadcast(ranks.is_main() ? std::string(data + at, count) : std::string());
    require<PeerError>(piece.size() == count,
                       c10::str("[Communicator] rank 0 sent ", piece.size(), " bytes of a state, expected ", count));
    if (!ranks.is_main()) std::memcpy(data + at, piece.data(), count);
  }
}

}  // namespace

std::vector<StateDict> gather_state(Communicator& communicator, const StateDict& own) {
  std::vector<StateDict> all;
  for (const std::string& bytes : communicator.all_gather(pack_state(own))) all.push_back(unpack_state(bytes));
  return all;
}

StateDict broadcast_state(Communicator& ranks, const StateDict& own) {
  if (ranks.world_size() == 1) return own;
  const std::string outline = ranks.broadcast(ranks.is_main() ? pack_state(outline_of(own)) : std::string());
  StateDict state = ranks.is_main() ? own : unpack_state(outline);
  for (const auto& [name, like] : StateDict(state).tensors()) {
    if (like.nbytes() <= kSmall) continue;
    const at::Tensor tensor = ranks.is_main() ? like : at::empty(like.sizes(), like.options());
    broadcast_bytes(ranks, static_cast<char*>(tensor.data_ptr()), tensor.nbytes());
    state.set(name, tensor);
  }
  return state;
}

}  // namespace duet
