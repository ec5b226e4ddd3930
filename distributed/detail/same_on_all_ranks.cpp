#include "distributed/detail/same_on_all_ranks.h"
#include <sstream>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

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

namespace {

// For each tensor a line with its bytes, dtype, dimensions and name, and then its values.
std::string packed(const StateDict& state) {
  std::string bytes;
  for (const auto& [name, tensor] : state.tensors()) {
    const at::Tensor values = tensor.contiguous();
    bytes += c10::str(values.nbytes(), " ", static_cast<int>(values.scalar_type()), " ", values.dim());
    for (const int64_t extent : values.sizes()) bytes += c10::str(" ", extent);
    bytes += " " + name + "\n";
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
  }
  return bytes;
}

StateDict unpacked(const std::string& bytes) {
  StateDict state;
  std::istringstream in(bytes);
  int64_t size = 0, type = 0, dimensions = 0;
  while (in >> size >> type >> dimensions) {
    std::vector<int64_t> extents(static_cast<std::size_t>(dimensions));
    for (int64_t& extent : extents) in >> extent;
    std::string name;
    in.get();
    std::getline(in, name);
    const at::Tensor values = at::empty(extents, static_cast<at::ScalarType>(type));
    in.read(static_cast<char*>(values.mutable_data_ptr()), size);
    state.set(name, values);
  }
  return state;
}

}  // namespace

std::vector<StateDict> gather_state(Communicator& communicator, const StateDict& own) {
  std::vector<StateDict> all;
  for (const std::string& bytes : communicator.all_gather(packed(own))) all.push_back(unpacked(bytes));
  return all;
}

}  // namespace duet
