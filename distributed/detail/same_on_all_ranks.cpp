#include "distributed/detail/same_on_all_ranks.h"
#include <algorithm>
#include <cstring>
#include <sstream>
#include <utility>
#include <variant>
#include <ATen/core/ivalue.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/jit/serialization/pickle.h>

namespace duet {

namespace {

// The lines in which two texts differ first; "nothing" where one of them has ended.
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

}  // namespace

std::optional<RankDifference> first_difference(const std::vector<std::string>& all) {
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    if (all[rank] == all[0]) continue;
    auto [there, on_first] = first_different_lines(all[rank], all[0]);
    return RankDifference{rank, std::move(there), std::move(on_first)};
  }
  return std::nullopt;
}

namespace {

// A state as bytes for other ranks, by LibTorch's pickler. Tensors lie on the host.
std::string pack_state(const StateDict& state) {
  std::vector<c10::IValue> items;  // names and contents in turn
  for (const auto& [name, tensor] : state.tensors()) {
    const at::Tensor plain = tensor.detach();
    const bool is_part = plain.storage().nbytes() > plain.nbytes();  // the pickler writes all of the memory
    items.insert(items.end(), {name, is_part ? plain.clone() : plain});
  }
  for (const auto& [name, value] : state.values()) {
    items.emplace_back(name);
    std::visit([&](const auto& content) { items.emplace_back(content); }, value);
  }
  const std::vector<char> bytes = torch::jit::pickle_save(c10::ivalue::Tuple::create(std::move(items)));
  return {bytes.begin(), bytes.end()};
}

StateValue value_of(const c10::IValue& value) {
  if (value.isBool()) return value.toBool();
  if (value.isInt()) return value.toInt();
  if (value.isDouble()) return value.toDouble();
  return value.toStringRef();
}

StateDict unpack_state(const std::string& bytes) {
  const c10::IValue read = torch::jit::pickle_load({bytes.begin(), bytes.end()});
  const auto& items = read.toTupleRef().elements();
  StateDict state;
  for (std::size_t i = 0; i < items.size(); i += 2) {
    const std::string& name = items[i].toStringRef();
    const c10::IValue& content = items.at(i + 1);
    content.isTensor() ? state.set(name, content.toTensor()) : state.set(name, value_of(content));
  }
  return state;
}

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
