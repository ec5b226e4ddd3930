#include "graph/guards/run_by_op.h"
#include <algorithm>
#include <unordered_set>
#include <utility>
#include "base/detail/bits.h"
#include "base/detail/op_rules.h"
#include "graph/guards/catch_up.h"
#include "graph/guards/recorded_op.h"
#include "graph/guards/shadow_storage.h"
#include "graph/guards/step_memory.h"

namespace duet {

namespace {

using Op = StepProgram::Op;

template <class Visit>
void for_each_tensor(const Op& op, Visit visit) {
  for_each_value(op.arguments, visit);
  for_each_value(op.results, visit);
}

// The storages that the step makes and that nobody uses after the op, by op: a step that just fits has no room for all.
std::vector<std::vector<int>> let_go_after(const StepProgram& recording) {
  std::unordered_set<int> stay;
  for (const int value : recording.results) {
    if (value >= 0) stay.insert(recording.table.values()[value].storage);
  }
  std::vector<std::vector<int>> storages(recording.ops.size());
  for (std::size_t i = recording.ops.size(); i-- > 0;) {
    for_each_tensor(recording.ops[i], [&](int value) {
      const int storage = recording.table.values()[value].storage;
      if (!recording.table.storages()[storage].external && stay.insert(storage).second) storages[i].push_back(storage);
    });
  }
  return storages;
}

}  // namespace

OpHashes run_by_op(const std::shared_ptr<const StepProgram>& recording) {
  const ValueTable& table = recording->table;
  StepMemory fresh(recording);
  fresh.start(/*ops_run=*/false);
  const RecordedOps ops(*recording, fresh.all());
  const auto hash = [&](int value) {
    if (value < 0) return std::string();
    const c10::Storage& storage = ops.memory(table.values()[value].storage);
    if (is_shadow(*storage.unsafeGetStorageImpl())) return std::string();
    return bits_hash(tensor_at(storage, table.values()[value]));
  };
  OpHashes hashes;
  const auto unused = let_go_after(*recording);
  const std::size_t end = recording->splits.empty() ? recording->ops.size() : recording->splits.front().op;
  for (std::size_t n = 0; n < end; ++n) {
    ops.run(n);
    const Op& op = recording->ops[n];
    std::string& hash_of_op = hashes.emplace_back();
    if (!is_empty_like(op.handle)) {  // it gives memory, not values
      for_each_value(op.results, [&](int value) { hash_of_op += hash(value); });
      for (const int value : op.written) hash_of_op += hash(value);
    }
    for (const int storage : unused[n]) turn_into_shadow(*ops.memory(storage).unsafeGetStorageImpl());
  }
  return hashes;
}

UnstableOps::UnstableOps(std::shared_ptr<const StepProgram> recording, const std::vector<OpHashes>& runs)
    : recording_(std::move(recording)), storages_(recording_->table.storages().size(), false) {
  const auto storage_of = [this](int value) { return recording_->table.values()[value].storage; };
  for (std::size_t i = 0; i < runs.front().size(); ++i) {
    const Op& op = recording_->ops[i];
    bool is_reached = false;
    for_each_value(op.arguments, [&](int value) { is_reached = is_reached || storages_[storage_of(value)]; });
    const bool differs = std::ranges::any_of(runs, [&](const OpHashes& run) { return run[i] != runs.front()[i]; });
    if (differs && first_.empty()) first_ = full_name(called(op)) + ", " + place_after(op.place) + ",";
    if (!differs && !is_reached) continue;
    if (op.handle.schema().name() == "duet::start_sum_") reach_other_ranks_ = true;
    for_each_value(op.results, [&](int value) { storages_[storage_of(value)] = true; });
    for (const int value : op.written) storages_[storage_of(value)] = true;
  }
}

bool UnstableOps::reach(const at::Tensor& tensor) const {
  const int storage = recording_->table.find_storage(tensor);
  return storage >= 0 && storages_[storage];
}

bool UnstableOps::reach_result(std::size_t index) const {
  const int value = recording_->results.at(index);
  return value >= 0 && storages_[recording_->table.values()[value].storage];
}

}  // namespace duet
