#include "graph/guards/recorded_ops.h"
#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <ATen/core/LegacyTypeDispatch.h>
#include "base/detail/bits.h"
#include "base/detail/op_rules.h"
#include "graph/guards/shadow_storage.h"
#include "graph/guards/step_memory.h"

namespace duet {

namespace {

using Slot = StepProgram::Slot;
using Op = StepProgram::Op;

template <class Number>
bool same_number_bits(const Number& a, const Number& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

template <class Visit>
void for_each_value_of(const Op& op, Visit visit) {
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
    for_each_value_of(recording.ops[i], [&](int value) {
      const int storage = recording.table.values()[value].storage;
      if (!recording.table.storages()[storage].external && stay.insert(storage).second) storages[i].push_back(storage);
    });
  }
  return storages;
}

}  // namespace

bool is_of_single_numbers(const Op& op, const ValueTable& table) {
  bool single = !op.random && op.written.empty() && hidden_writes(op.handle).empty() && !op.results.empty();
  for (const Slot& slot : op.arguments) {
    single = single && (slot.kind == Slot::Kind::kConstant || slot.kind == Slot::Kind::kValue);
  }
  bool any = false;
  for_each_value_of(op, [&](int value) {
    any = true;
    single = single && table.values()[value].sizes.empty() && table.storage_of(value).device.is_cpu();
  });
  return single && any;
}

int argument_returned(const c10::FunctionSchema& schema, std::size_t result) {
  const auto* alias = schema.returns()[result].alias_info();
  if (alias == nullptr || !alias->isWrite()) return -1;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* argument = schema.arguments()[i].alias_info();
    if (argument != nullptr && argument->isWrite() && argument->beforeSet() == alias->beforeSet()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

bool same_number(const c10::IValue& recorded, const c10::IValue& now) {
  if (recorded.isDouble() && now.isDouble()) return same_number_bits(recorded.toDouble(), now.toDouble());
  if (recorded.isComplexDouble() && now.isComplexDouble()) {
    return same_number_bits(recorded.toComplexDouble(), now.toComplexDouble());
  }
  if (recorded.isDoubleList() && now.isDoubleList()) {
    return std::ranges::equal(recorded.toDoubleVector(), now.toDoubleVector(), same_number_bits<double>);
  }
  if (recorded.isTensor() || now.isTensor()) return recorded.isTensor() && now.isTensor();  // both undefined
  return recorded == now;
}

bool same_results(const StepProgram::Op& recorded, const torch::jit::Stack& stack) {
  const std::size_t first = stack.size() - recorded.results.size();
  for (std::size_t r = 0; r < recorded.results.size(); ++r) {
    const Slot& slot = recorded.results[r];
    if (slot.kind == Slot::Kind::kConstant && !same_number(slot.constant, stack[first + r])) return false;
  }
  return true;
}

void RecordedOps::run(std::size_t index) const {
  const Op& op = recording_.ops[index];
  if (is_done(index)) return;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const ThreadSettingsGuard settings;
  set_thread_settings(op.settings);
  torch::jit::Stack stack;
  for (const Slot& slot : op.arguments) stack.push_back(slot_value(slot, [this](int v) { return tensor(v); }));
  op.handle.redispatchBoxed(c10::DispatchKeySet(key_of(op)), &stack);
  for (std::size_t r = 0; r < op.results.size(); ++r) take_results(index, op.results[r], stack[r]);
}

// Host code has made its constants itself, and views are made where they are used.
bool RecordedOps::is_done(std::size_t index) const {
  const Op& op = recording_.ops[index];
  if (op.copies_constant) return !is_shadow(*memory_of(op.results.front().values.front()));
  return op.on_host || recording_.is_view(index);
}

c10::StorageImpl* RecordedOps::memory_of(int value) const {
  return memory_[recording_.table.values()[value].storage].unsafeGetStorageImpl();
}

c10::DispatchKey RecordedOps::key_of(const Op& op) const {
  bool on_device = false;
  for_each_value_of(op,
                    [&](int value) { on_device = on_device || recording_.table.storage_of(value).device.is_cuda(); });
  return on_device ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
}

at::Tensor RecordedOps::tensor(int value) const {
  if (value < 0) return {};
  const ValueTable::Value& wanted = recording_.table.values()[value];
  const ValueTable::Storage& storage = recording_.table.storages()[wanted.storage];
  const bool is_original = wanted.original.defined() && !storage.changes && !storage.input;
  return is_original ? wanted.original : tensor_at(memory_[wanted.storage], wanted);
}

void RecordedOps::take_results(std::size_t index, const Slot& slot, const c10::IValue& result) const {
  for (std::size_t i = 0; i < slot.values.size(); ++i) {
    const int value = slot.values[i];
    if (value < 0 || !recording_.table.made_by(index, value) || !is_shadow(*memory_of(value))) continue;
    const at::Tensor& made = result.isTensor() ? result.toTensor() : result.toListRef()[i].toTensor();
    memory_of(value)->set_nbytes(made.storage().nbytes());
    fill_shadow(*memory_of(value), take_memory(made));
  }
}

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
      for (std::size_t i = 0; i < op.results.size(); ++i) {
        if (!is_workspace(op.handle, i)) for_each_value({op.results[i]}, [&](int value) { hash_of_op += hash(value); });
      }
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
