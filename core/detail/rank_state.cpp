#include "core/detail/rank_state.h"
#include <algorithm>
#include <set>
#include <sstream>
#include <c10/util/StringUtil.h>
#include "base/detail/tensor_compare.h"
#include "base/detail/xxh3.h"
#include "base/log.h"
#include "base/random.h"
#include "checkpoint/detail/checkpoint_format.h"
#include "distributed/detail/same_on_all_ranks.h"

namespace duet {

DifferentRank find_rank_with_other_weights(Task& task, Communicator& ranks) {
  std::string own_lines;
  for (const auto& [name, tensor] : task.named_parameters()) own_lines += c10::str(bits_hash(tensor), " ", name, "\n");
  const std::vector<std::string> hashes = ranks.all_gather(xxh3_hex(own_lines.data(), own_lines.size()));
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return {};
  const std::size_t rank = static_cast<std::size_t>(other - hashes.begin());
  const std::vector<std::string> all = ranks.all_gather(own_lines);
  const std::string line = first_different_lines(all[rank], all[0]).first;
  return {rank, line.substr(line.find(' ') + 1)};
}

namespace {

// The model's buffers, and those in the averages of hooks, by their names in a trainer's state; on the host.
StateDict buffers_in(const StateDict& state, Task& task) {
  std::set<std::string> names;
  for (const auto& item : task.named_buffers()) names.insert(item.first);
  StateDict found;
  for (const auto& [name, tensor] : state.tensors()) {
    const std::string prefix = checkpoint_format::place_of(name).prefix;
    const bool is_buffer = !prefix.empty() && names.count(name.substr(prefix.size())) != 0;
    if (is_buffer) found.set(name, tensor.detach().cpu().contiguous());
  }
  return found;
}

// Those of `own` that differ from rank 0's, found by their hashes.
StateDict unlike_main(const StateDict& own, Communicator& ranks) {
  const auto line_of = [](const std::string& name, const at::Tensor& tensor) {
    return c10::str(bits_hash(tensor), " ", tensor.scalar_type(), tensor.sizes(), " ", name);
  };
  std::string lines;
  for (const auto& [name, tensor] : own.tensors()) lines += line_of(name, tensor) + "\n";
  std::istringstream main(ranks.broadcast(lines));
  std::set<std::string> of_main;
  for (std::string line; std::getline(main, line);) of_main.insert(line);
  StateDict differing;
  for (const auto& [name, tensor] : own.tensors()) {
    if (of_main.count(line_of(name, tensor)) == 0) differing.set(name, tensor);
  }
  return differing;
}

bool is_of_as_many(const StateDict& saved, const Communicator& ranks) {
  const auto has = [&](int64_t rank) { return saved.has(c10::str("random_ranks.", rank, ".cpu")); };
  return has(ranks.world_size() - 1) && !has(ranks.world_size());
}

StateDict new_random_state(const StateDict& saved, int64_t rank) {
  const auto step = static_cast<uint64_t>(saved.integer("trainer.step"));
  const StateDict present = random_state();
  set_random_state(saved.part("random"));
  seed_all(rank_seed(default_seed() + step, rank));
  StateDict own = random_state();
  set_random_state(present);
  return own;
}

}  // namespace

void add_rank_state(StateDict& state, Task& task, Communicator& ranks) {
  if (ranks.is_alone()) return;
  StateDict own;
  own.put("random", random_state());
  own.put("buffers", unlike_main(buffers_in(state, task), ranks));
  const std::vector<StateDict> all = gather_state(ranks, own);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    state.put(c10::str("random_ranks.", rank), all[rank].part("random"));
    state.put(c10::str("buffers_ranks.", rank), all[rank].part("buffers"));
  }
}

StateDict own_rank_state(const StateDict& saved, const Communicator& ranks) {
  const bool as_many = is_of_as_many(saved, ranks);
  if (ranks.is_main() && !as_many && !saved.part("buffers_ranks").tensors().empty()) {
    log_info(
        "[Checkpoint] it was saved by another number of ranks, each with buffers of its own: those of rank 0 are "
        "used everywhere");
  }
  if (ranks.is_main()) return saved;
  StateDict own = saved.without("random");
  if (!as_many) {
    own.put("random", new_random_state(saved, ranks.rank()));
    return own;
  }
  own.put("random", saved.part(c10::str("random_ranks.", ranks.rank())));
  const StateDict buffers = saved.part(c10::str("buffers_ranks.", ranks.rank()));
  for (const auto& [name, tensor] : buffers.tensors()) own.set(name, tensor);
  return own;
}

}  // namespace duet
