#include "graph/guards/step_memory.h"
#include <algorithm>
#include <ATen/core/grad_mode.h>
#include <c10/core/InferenceMode.h>
#include "base/detail/bits.h"
#include "base/detail/tensor_handle.h"
#include "graph/guards/shadow_storage.h"
#include "graph/record/obstacle.h"
#include "graph/record/step_results.h"

namespace duet {

bool is_same_place(const ValueTable::Value& recorded, const at::Tensor& now) {
  return now.storage_offset() == recorded.offset && now.scalar_type() == recorded.dtype &&
         now.sizes() == at::IntArrayRef(recorded.sizes) && now.strides() == at::IntArrayRef(recorded.strides) &&
         now.is_conj() == recorded.conj && now.is_neg() == recorded.neg &&
         now.unsafeGetTensorImpl()->is_wrapped_number() == recorded.wrapped;
}

StepMemory::StepMemory(std::shared_ptr<const StepProgram> recording)
    : recording_(std::move(recording)),
      table_(recording_->table),
      prototypes_(table_.values().size()),
      written_(recording_->written_outside()),
      copied_(table_.storages().size(), false) {
  for (const StepProgram::Op& op : recording_->ops) {
    if (op.copies_constant)
      for_each_value(op.arguments, [&](int value) { copied_[table_.values()[value].storage] = true; });
  }
}

void StepMemory::start(bool ops_run) {
  ops_run_ = ops_run;
  seen_.assign(table_.storages().size(), Weak(c10::intrusive_ptr<c10::StorageImpl>()));
  left_behind_.clear();
  filled_.assign(seen_.size(), false);
  locals_.clear();
  bound_.clear();
}

void StepMemory::see(int storage, c10::StorageImpl* memory) {
  seen_[storage] = Weak(c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(memory));
}

bool StepMemory::is_from_outside(int storage) const {
  const ValueTable::Storage& recorded = table_.storages()[storage];
  return recorded.external && !recorded.contents && !recorded.input;
}

bool StepMemory::is_same(const ValueTable::Value& recorded, const at::Tensor& tensor) {
  if (!tensor.has_storage() || !is_same_place(recorded, tensor)) return false;
  const ValueTable::Storage& storage = table_.storages()[recorded.storage];
  const c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
  if (!is_from_outside(recorded.storage)) return memory == seen_[recorded.storage]._unsafe_get_target();
  if (storage.changes) return bind(recorded.storage, tensor.storage());
  return memory == storage.strong.unsafeGetStorageImpl() || (storage.local && is_same_local(recorded, tensor));
}

bool StepMemory::are_results(const std::vector<at::Tensor>& results) {
  const std::vector<int>& recorded = recording_->results;
  bool same = results.size() == recorded.size();
  for (std::size_t i = 0; same && i < results.size(); ++i) {
    same = recorded[i] < 0 || is_same(table_.values()[recorded[i]], results[i]);
  }
  return same;
}

// Memory that the step knows by another name as well, and writes to, cannot be bound: a replay would work on two
// copies.
bool StepMemory::bind(int storage, const c10::Storage& memory) {
  for (const Bound& bound : bound_) {
    if (bound.storage == storage) return bound.memory.unsafeGetStorageImpl() == memory.unsafeGetStorageImpl();
  }
  if (is_shadow(*memory.unsafeGetStorageImpl()) || memory.nbytes() != table_.storages()[storage].bytes) return false;
  const MemoryRange wanted = MemoryRange::of(memory);
  for (std::size_t s = 0; s < seen_.size(); ++s) {
    if (!written_[storage] && !written_[s]) continue;
    const bool fixed = is_from_outside(static_cast<int>(s));
    const c10::Storage known = fixed ? outside(static_cast<int>(s)) : c10::Storage(seen_[s].lock());
    if (known && static_cast<int>(s) != storage && MemoryRange::of(known).overlaps(wanted)) return false;
  }
  bound_.push_back({storage, memory, {}});
  if (ops_run_ && (written_[storage] || copied_[storage])) {
    bound_.back().before = c10::Storage(c10::Storage::use_byte_size_t(), memory.nbytes(), copy_memory(memory));
  }
  return true;
}

bool StepMemory::is_view_by_other_means(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  const at::Tensor tensor = laid_over_memory(op, stack);
  if (!tensor.defined()) return false;
  const c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
  for (std::size_t s = 0; s < seen_.size(); ++s) {
    if (seen_[s]._unsafe_get_target() == memory) return !table_.storages()[s].external;
  }
  return false;
}

// Made below the dispatcher in each step; what counts is what it holds.
bool StepMemory::is_same_local(const ValueTable::Value& recorded, const at::Tensor& tensor) {
  c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
  const c10::Storage& held = table_.storages()[recorded.storage].strong;
  if (tensor.device() != held.device() || is_shadow(*memory) || !same_bits(tensor_at(held, recorded), tensor))
    return false;
  if (!tensor.unsafeGetTensorImpl()->is_wrapped_number()) locals_.push_back(tensor.storage().getWeakStorageImpl());
  return true;
}

bool StepMemory::local_outlives_step() const {
  return std::any_of(locals_.begin(), locals_.end(), [](const Weak& local) { return local.use_count() > 0; });
}

bool StepMemory::hold_the_same(const std::vector<int>& constants, bool captured) const {
  return std::ranges::all_of(constants, [&](int constant) {
    const ValueTable::Storage& recorded = table_.storages()[constant];
    if (captured && !recorded.device.is_cpu()) return true;
    const c10::Storage now(seen_[constant].lock());
    return now && same_bits(bytes_of(now), bytes_of(recorded.contents));
  });
}

at::Tensor StepMemory::hand_out(int value, std::size_t op) {
  const ValueTable::Value& wanted = table_.values()[value];
  const ValueTable::Storage& storage = table_.storages()[wanted.storage];
  at::Tensor& prototype = prototypes_[value];
  if (!prototype.defined()) {
    const c10::InferenceMode ordinary(false);  // a copy of an inference tensor has no version to count
    c10::DataPtr none(nullptr, storage.device);
    prototype = tensor_at(c10::Storage(c10::Storage::use_byte_size_t(), storage.bytes, std::move(none)), wanted);
  }
  at::Tensor made = handle_of(prototype);
  c10::TensorImpl& over = *made.unsafeGetTensorImpl();
  if (table_.made_by(op, value) && seen_[wanted.storage]._unsafe_get_target() == nullptr) {
    auto shadow = make_shadow(storage.bytes, storage.device);
    see(wanted.storage, shadow.get());
    over.set_storage_keep_dtype(c10::Storage(std::move(shadow)));
  } else if (is_from_outside(wanted.storage)) {
    over.set_storage_keep_dtype(outside(wanted.storage));
  } else {
    over.set_storage_keep_dtype(c10::Storage(seen_[wanted.storage].lock()));
  }
  return made;
}

void StepMemory::mark_stale(int storage) {
  if (is_from_outside(storage)) {
    c10::StorageImpl* memory = outside(storage).unsafeGetStorageImpl();
    if (!left_behind_.insert(memory).second || table_.storages()[storage].local) return;
    if (memory->nbytes() > 0) lock(*memory);
  } else if (table_.storages()[storage].contents) {  // numbers of the host until now
    c10::StorageImpl* memory = seen_[storage]._unsafe_get_target();
    if (!is_shadow(*memory)) turn_into_shadow(*memory);
  }
}

void StepMemory::release() {
  for (c10::StorageImpl* memory : left_behind_) unlock(*memory);
  left_behind_.clear();
}

bool StepMemory::is_there(const at::Tensor& tensor) const {
  c10::StorageImpl* memory = tensor.storage().unsafeGetStorageImpl();
  return !is_shadow(*memory) && left_behind_.count(memory) == 0;
}

const c10::Storage& StepMemory::outside(int storage) const {
  for (const Bound& bound : bound_) {
    if (bound.storage == storage) return bound.memory;
  }
  return table_.storages()[storage].strong;
}

bool StepMemory::is_kept_by_others(const std::vector<at::Tensor>& results) const {
  const ResultReferences references(results);
  for (std::size_t s = 0; s < seen_.size(); ++s) {
    if (seen_[s].use_count() == 0 || table_.storages()[s].kept) continue;
    const c10::StorageImpl* memory = seen_[s]._unsafe_get_target();
    const bool of_step = is_shadow(*memory) || table_.storages()[s].input;
    if (of_step && !references.only_results(memory)) return true;
  }
  return false;
}

std::vector<c10::Storage> StepMemory::all() const {
  std::vector<c10::Storage> memory;
  for (std::size_t s = 0; s < seen_.size(); ++s) {
    const ValueTable::Storage& storage = table_.storages()[s];
    auto alive = seen_[s].lock();
    if (storage.external && !storage.contents && !(storage.input && alive)) {
      memory.push_back(outside(static_cast<int>(s)));
    } else if (storage.external && !alive) {
      memory.push_back(storage.strong);  // a constant that host code has made and dropped again
    } else {
      memory.emplace_back(alive ? std::move(alive) : make_shadow(storage.bytes, storage.device));
    }
  }
  return memory;
}

void StepMemory::bring_bound(const MemoryOf& memory_of) const {
  const at::NoGradGuard no_grad;
  for (const Bound& bound : bound_) {
    bytes_of(memory_of(bound.storage)).copy_(bytes_of(bound.before ? bound.before : bound.memory));
  }
}

void StepMemory::take_bound(const MemoryOf& memory_of) const {
  const at::NoGradGuard no_grad;
  for (const Bound& bound : bound_) {
    if (!written_[bound.storage]) continue;  // it may be memory that cannot be written
    bytes_of(bound.memory).copy_(bytes_of(memory_of(bound.storage)));
  }
}

bool StepMemory::bound_are_same(const MemoryOf& memory_of) const {
  return std::ranges::all_of(bound_, [&](const Bound& bound) {
    return !written_[bound.storage] || same_bits(bytes_of(memory_of(bound.storage)), bytes_of(bound.memory));
  });
}

void StepMemory::fill_kept(std::size_t op, const MemoryOf& memory_of) {
  for (std::size_t s = 0; s < seen_.size(); ++s) {
    const int producer = table_.storages()[s].producer;
    if (!table_.storages()[s].kept) continue;  // what else lives is let go of before the step ends
    if (seen_[s].use_count() == 0 || producer < 0 || static_cast<std::size_t>(producer) >= op) continue;
    if (!is_shadow(*seen_[s]._unsafe_get_target()) && !filled_[s]) continue;  // the host's own
    filled_[s] = true;
    fill_shadow(*seen_[s].lock(), copy_memory(memory_of(static_cast<int>(s))));
  }
}

namespace {

bool any_lies_in(const c10::StorageImpl* memory, const std::vector<at::Tensor>& tensors) {
  return std::ranges::any_of(tensors, [memory](const at::Tensor& tensor) {
    return tensor.defined() && tensor.has_storage() && tensor.storage().unsafeGetStorageImpl() == memory;
  });
}

}  // namespace

void StepMemory::bring_kept(const MemoryOf& memory_of, const std::vector<at::Tensor>& except) const {
  const at::NoGradGuard no_grad;
  for (std::size_t s = 0; s < seen_.size(); ++s) {
    if (!filled_[s] || seen_[s].use_count() == 0 || any_lies_in(seen_[s]._unsafe_get_target(), except)) continue;
    bytes_of(memory_of(static_cast<int>(s))).copy_(bytes_of(c10::Storage(seen_[s].lock())));
  }
}

void StepMemory::empty(const std::vector<at::Tensor>& tensors) {
  for (std::size_t s = 0; s < seen_.size(); ++s) {
    if (!filled_[s] || seen_[s].use_count() == 0) continue;
    c10::StorageImpl* memory = seen_[s]._unsafe_get_target();
    if (!is_shadow(*memory) && any_lies_in(memory, tensors)) turn_into_shadow(*memory);
  }
}

}  // namespace duet
