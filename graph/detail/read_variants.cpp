#include "graph/detail/read_variants.h"
#include <algorithm>
#include <vector>

namespace duet {

namespace {

using State = SignatureEntry::State;
using Entries = std::vector<SignatureEntry*>;

constexpr std::size_t kMaxVariants = 8;  // of one signature
constexpr std::size_t kMaxUnused = 4;    // captured without one that was ever replayed

Entries entries_of(SignatureEntry& first) {
  Entries entries{&first};
  for (const auto& variant : first.variants) entries.push_back(variant.get());
  return entries;
}

SignatureEntry* first_with(const Entries& entries, State state) {
  const auto found =
      std::find_if(entries.begin(), entries.end(), [state](auto* entry) { return entry->state == state; });
  return found == entries.end() ? nullptr : *found;
}

SignatureEntry* least_recent(const Entries& entries) {
  return *std::min_element(entries.begin(), entries.end(), [](auto* a, auto* b) { return a->last_use < b->last_use; });
}

bool reads_values(SignatureEntry& entry) { return entry.step != nullptr && entry.step->reads() != nullptr; }

// The one that was captured with the values of this step; null if none was.
SignatureEntry* that_holds(const Entries& entries, const MicroBatches& micro_batches) {
  for (SignatureEntry* entry : entries) {
    if (entry->state != State::kCaptured || (reads_values(*entry) && !entry->step->reads()->holds(micro_batches)))
      continue;
    const bool is_back =
        std::any_of(entries.begin(), entries.end(), [entry](auto* other) { return other->last_use > entry->last_use; });
    entry->returns += is_back ? 1 : 0;
    return entry;
  }
  return nullptr;
}

bool any_replayed(const Entries& entries) {
  return std::any_of(entries.begin(), entries.end(), [](auto* entry) { return entry->report.replays > 0; });
}

// What came back stays captured, one entry runs eager for all other values.
ReadChoice give_up(SignatureCache& cache, SignatureEntry& first, const Entries& entries) {
  std::string reason;
  for (SignatureEntry* entry : entries) {
    if (reason.empty() && reads_values(*entry)) reason = entry->step->reads()->changed();
  }
  reason +=
      " reads a value back to the host that changes from step to step; keep it a tensor (item(), bool(tensor) and "
      "printing are what cause this), or name what it depends on in Task::graph_key";
  SignatureEntry& heir = first.returns > 0 ? cache.add_variant(first) : first;
  for (SignatureEntry* entry : entries) {
    if (entry != &first && entry->returns == 0) cache.forget_variant(*entry, heir);
  }
  heir.drop();
  return {&heir, reason};
}

}  // namespace

ReadChoice choose_by_reads(SignatureCache& cache, SignatureEntry& first, const MicroBatches& micro_batches) {
  if (first.variants.empty() && !reads_values(first)) return {&first};
  const Entries entries = entries_of(first);
  if (SignatureEntry* same = that_holds(entries, micro_batches)) return {same};
  if (SignatureEntry* seen = first_with(entries, State::kSeen)) return {seen};
  if (SignatureEntry* eager = first_with(entries, State::kEager)) return {eager};
  if (entries.size() < kMaxVariants && (entries.size() < kMaxUnused || any_replayed(entries))) {
    return {&cache.add_variant(first)};
  }
  // Values that change seldom: the next ones may take the place of those that have paid for it.
  SignatureEntry* oldest = least_recent(entries);
  if (oldest->has_paid()) {
    oldest->drop();
    return {oldest};
  }
  return give_up(cache, first, entries);
}

}  // namespace duet
