#include "graph/detail/read_variants.h"
#include <algorithm>

namespace duet {

namespace {

using State = SignatureEntry::State;

constexpr std::size_t kMaxVariants = 8;  // of one signature
constexpr std::size_t kMaxUnused = 4;    // captured without one that was ever replayed

SignatureEntry* first_with(const SignatureVariants& entries, State state) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [state](const auto& entry) { return entry->state == state; });
  return found == entries.end() ? nullptr : found->get();
}

SignatureEntry* least_recent(const SignatureVariants& entries) {
  return std::ranges::min_element(entries, {}, [](const auto& entry) { return entry->last_use; })->get();
}

bool reads_values(const SignatureEntry& entry) { return entry.step != nullptr && entry.step->reads() != nullptr; }

// The one that was captured with the values of this step; null if none was.
SignatureEntry* that_holds(const SignatureVariants& entries, const MicroBatches& micro_batches) {
  for (const auto& entry : entries) {
    if (entry->state != State::kCaptured || (reads_values(*entry) && !entry->step->reads()->holds(micro_batches)))
      continue;
    const bool is_back =
        std::ranges::any_of(entries, [&entry](const auto& other) { return other->last_use > entry->last_use; });
    entry->returns += is_back ? 1 : 0;
    return entry.get();
  }
  return nullptr;
}

bool any_replayed(const SignatureVariants& entries) {
  return std::ranges::any_of(entries, [](const auto& entry) { return entry->report.replays > 0; });
}

// What came back stays captured, one entry runs eager for all other values.
ReadChoice give_up(SignatureCache& cache, SignatureVariants& entries) {
  const auto reading = std::ranges::find_if(entries, [](const auto& entry) { return reads_values(*entry); });
  const std::string reason =
      (*reading)->step->reads()->changed() +
      " reads a value back to the host that changes from step to step; keep it a tensor (item(), bool(tensor) and "
      "printing are what cause this), or name what it depends on in Task::graph_key";
  const auto unused = std::ranges::find_if(entries, [](const auto& entry) { return entry->returns == 0; });
  SignatureEntry& heir = unused == entries.end() ? cache.add_variant(entries) : **unused;
  heir.drop();
  cache.merge_variants(entries, heir);
  return {&heir, reason};
}

}  // namespace

ReadChoice choose_by_reads(SignatureCache& cache, SignatureVariants& entries, const MicroBatches& micro_batches) {
  if (entries.size() == 1 && !reads_values(*entries.front())) return {entries.front().get()};
  if (SignatureEntry* same = that_holds(entries, micro_batches)) return {same};
  if (SignatureEntry* seen = first_with(entries, State::kSeen)) return {seen};
  if (SignatureEntry* eager = first_with(entries, State::kEager)) return {eager};
  if (entries.size() < kMaxVariants && (entries.size() < kMaxUnused || any_replayed(entries))) {
    return {&cache.add_variant(entries)};
  }
  // Values that change seldom: the next ones may take the place of those that have paid for it.
  SignatureEntry* oldest = least_recent(entries);
  if (oldest->has_paid()) {
    oldest->drop();
    return {oldest};
  }
  return give_up(cache, entries);
}

}  // namespace duet
