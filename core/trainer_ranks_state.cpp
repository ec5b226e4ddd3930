#include "checkpoint/detail/checkpoint_format.h"
#include "distributed/communicator.h"
#include "distributed/detail/gather_state.h"
#include "distributed/detail/text_difference.h"
#include "base/detail/xxh3.h"
#include "base/log.h"
#include "base/random.h"
#include "base/detail/tensor_compare.h"
#include "core/trainer.h"

#include <c10/util/StringUtil.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace duet {

// What the ranks of a trainer have in common, and what each has of its own, in a state that rank 0 saves.

// Steps leave the same weights on all ranks. What else writes to them may not, and then no checkpoint is right: it
// holds those of rank 0, and gradients are means over different models.
void BaseTrainer::warn_of_drift() {
  Communicator& ranks = *context_.communicator;
  if (ranks.world_size() == 1 || told_of_drift_) return;
  std::string own_lines;
  for (const auto& [name, tensor] : rule_->task().named_parameters())
    own_lines += c10::str(bits_hash(tensor), " ", name, "\n");
  const std::vector<std::string> hashes = ranks.all_gather(xxh3_hex(own_lines.data(), own_lines.size()));
  const auto other = std::find_if(hashes.begin(), hashes.end(), [&](const auto& hash) { return hash != hashes[0]; });
  if (other == hashes.end()) return;
  told_of_drift_ = true;
  const std::size_t rank = static_cast<std::size_t>(other - hashes.begin());
  const std::vector<std::string> all = ranks.all_gather(own_lines);
  const std::string line = first_different_lines(all[rank], all[0]).first;
  if (!context_.is_main) return;
  log_warning(c10::str("[Distributed] after step ", context_.progress.step, " parameter '",
                       line.substr(line.find(' ') + 1), "' of rank ", rank,
                       " has other values than that of rank 0: something but the steps writes ",
                       "to it, or the ranks' processors compute differently. Let hooks write the same on all ranks"));
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

}  // namespace

// The state of rank r's generators is "random" for r = 0 and "random_ranks.r" for the others. "buffers_ranks.r" holds
// what rank r has other than rank 0 where each keeps its own running statistics, by its name in the whole state.
void BaseTrainer::add_state_of_ranks(StateDict& state) {
  Communicator* ranks = context_.communicator;
  if (ranks == nullptr) return;
  warn_of_drift();
  StateDict own;
  own.put("random", random_state());
  own.put("buffers", unlike_main(buffers_in(state, rule_->task()), *ranks));
  const std::vector<StateDict> all = gather_state(*ranks, own);
  for (std::size_t rank = 1; rank < all.size(); ++rank) {
    state.put(c10::str("random_ranks.", rank), all[rank].part("random"));
    state.put(c10::str("buffers_ranks.", rank), all[rank].part("buffers"));
  }
}

// At another world size than the saved one all take rank 0's buffers, and the generators of all ranks but 0 start anew,
// from what rank 0's is seeded with, the step and the rank.
StateDict BaseTrainer::state_of_this_rank(const StateDict& saved) const {
  const Communicator* ranks = context_.communicator;
  const bool as_many = ranks != nullptr && is_of_as_many(saved, *ranks);
  if (context_.is_main && !as_many && !saved.part("buffers_ranks").tensors().empty()) {
    log_info("[Checkpoint] it was saved by another number of ranks, each with buffers of its own: those of rank 0 are "
             "used everywhere");
  }
  if (context_.is_main) return saved;
  StateDict own = saved.without("random");
  if (!as_many) {
    own.put("random", new_random_state(saved));
    return own;
  }
  own.put("random", saved.part(c10::str("random_ranks.", ranks->rank())));
  const StateDict buffers = saved.part(c10::str("buffers_ranks.", ranks->rank()));
  for (const auto& [name, tensor] : buffers.tensors()) own.set(name, tensor);
  return own;
}

StateDict BaseTrainer::new_random_state(const StateDict& saved) const {
  const auto step = static_cast<uint64_t>(saved.integer("trainer.step"));
  const StateDict present = random_state();
  set_random_state(saved.part("random"));
  seed_all(rank_seed(default_seed() + step, context_.communicator->rank()));
  StateDict own = random_state();
  set_random_state(present);
  return own;
}

}  // namespace duet
