#include "graph/record/step_program.h"
#include <unordered_set>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include "base/detail/references.h"

namespace duet {

int ValueTable::find_storage(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.has_storage()) return -1;
  const auto known = storage_index_.find(tensor.storage().unsafeGetStorageImpl());
  return known == storage_index_.end() ? -1 : known->second;
}

int ValueTable::add_storage(const at::Tensor& tensor, int producer) {
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  const auto [entry, added] = storage_index_.try_emplace(impl, static_cast<int>(storages_.size()));
  if (added) {
    Storage storage;
    storage.weak = tensor.storage().getWeakStorageImpl();
    storage.bytes = impl->nbytes();
    storage.device = tensor.device();
    storage.external = producer < 0;
    storage.producer = producer;
    if (storage.external) storage.strong = tensor.storage();
    storages_.push_back(std::move(storage));
  }
  return entry->second;
}

int ValueTable::find(const at::Tensor& tensor) const {
  const int storage = find_storage(tensor);
  if (storage < 0) return -1;
  const auto known = value_index_.find(place_of(tensor, storage));
  return known == value_index_.end() ? -1 : known->second;
}

int ValueTable::add(const at::Tensor& tensor, int storage, bool keep) {
  const int known = find(tensor);
  if (known >= 0) return known;
  const int index = static_cast<int>(values_.size());
  values_.push_back({place_of(tensor, storage), keep ? tensor : at::Tensor()});
  value_index_.emplace(values_.back(), index);
  return index;
}

// A copy: the host may change its tensor later, in this step or after it.
void ValueTable::make_constant(int storage) {
  Storage& constant = storages_[storage];
  const c10::Storage live(constant.weak->lock());
  const at::NoGradGuard no_grad;
  constant.contents = bytes_of(live).clone().storage();
  constant.strong = constant.contents;
  constant.external = true;
  constant.host = false;
}

bool ValueTable::alone_refers_to(int storage) const {
  std::size_t references = 1;
  for (const Value& value : values_) {
    if (value.storage != storage || !value.original.defined()) continue;
    ++references;
    if (references_to(value.original) > 1) return false;
  }
  return storages_[storage].strong.use_count() <= references;
}

void ValueTable::move_external(int storage, const c10::Storage& memory) {
  storages_[storage].strong = memory;
  storage_index_.emplace(memory.unsafeGetStorageImpl(), storage);
  const at::NoGradGuard no_grad;
  for (Value& value : values_) {
    if (value.storage == storage) value.original = tensor_at(memory, value);
  }
}

void ValueTable::make_internal(int storage) {
  storages_[storage].external = false;
  storages_[storage].strong = c10::Storage();
  for (Value& value : values_) {
    if (value.storage == storage) value.original.reset();
  }
}

std::string place_after(const std::string& parameter) {
  return parameter.empty() ? "before the first parameter is read"
                           : "after the last read of parameter '" + parameter + "'";
}

at::Tensor tensor_at(const c10::Storage& memory, const ValueTable::Layout& layout) {
  const at::TensorOptions options = at::TensorOptions().dtype(layout.dtype).device(memory.device());
  at::Tensor tensor = at::empty({0}, options).set_(memory, layout.offset, layout.sizes, layout.strides);
  if (layout.conj) tensor._set_conj(true);
  if (layout.neg) tensor._set_neg(true);
  if (layout.wrapped) tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

ValueTable::Layout place_of(const at::Tensor& tensor, int storage) {
  return {storage,
          tensor.storage_offset(),
          tensor.sizes().vec(),
          tensor.strides().vec(),
          tensor.scalar_type(),
          tensor.is_conj(),
          tensor.is_neg(),
          tensor.unsafeGetTensorImpl()->is_wrapped_number()};
}

at::Tensor bytes_of(const c10::Storage& memory) {
  return tensor_at(memory, {0, 0, {static_cast<int64_t>(memory.nbytes())}, {1}, at::kByte});
}

MemoryRange range_of(const c10::Storage& memory, const ValueTable::Value& value) {
  const std::size_t element = c10::elementSize(value.dtype);
  return MemoryRange::of(memory, static_cast<std::size_t>(value.offset) * element,
                         MemoryRange::elements_spanned(value.sizes, value.strides) * element);
}

void StepProgram::mark_needed(std::vector<bool>& of_ops, std::vector<bool>& of_storages, std::size_t end) const {
  for (std::size_t i = end; i-- > 0;) {
    const Op& op = ops[i];
    if (op.on_host && !op.copies_constant) continue;
    bool needed = of_ops[i];
    const auto look = [&](int value) { needed = needed || of_storages[table.values()[value].storage]; };
    for_each_written(op, look);
    for_each_value(op.results, [&](int value) {
      if (table.made_by(i, value)) look(value);
    });
    of_ops[i] = needed;
    if (needed) for_each_value(op.arguments, [&](int value) { of_storages[table.values()[value].storage] = true; });
  }
}

bool StepProgram::is_view(std::size_t index) const {
  const Op& op = ops[index];
  if (op.handle.hasTag(at::Tag::inplace_view)) return true;
  if (!op.written.empty() || op.random || op.results.empty() || !hidden_writes(op.handle).empty()) return false;
  bool any = false, fresh = false;
  for_each_value(op.results, [&](int value) {
    any = true;
    fresh = fresh || table.made_by(index, value);
  });
  return any && !fresh;
}

template <class Visit>
void StepProgram::for_each_write_outside(Visit visit) const {
  for (const Op& op : ops) {
    for_each_written(op, [&](int value) {
      if (table.storage_of(value).external) visit(table.values()[value]);
    });
  }
}

std::vector<bool> StepProgram::written_outside() const {
  std::vector<bool> changed(table.storages().size());
  for_each_write_outside([&](const ValueTable::Value& value) { changed[value.storage] = true; });
  return changed;
}

std::vector<std::pair<c10::Storage, MemoryRange>> StepProgram::written_ranges() const {
  std::vector<std::pair<c10::Storage, MemoryRange>> ranges;
  for_each_write_outside([&](const ValueTable::Value& value) {
    const c10::Storage& memory = table.storages()[value.storage].strong;
    ranges.emplace_back(memory, range_of(memory, value));
  });
  return ranges;
}

NamedTensors StepProgram::changed_outside() const {
  const std::vector<bool> changed = written_outside();
  NamedTensors tensors;
  for (std::size_t s = 0; s < changed.size(); ++s) {
    if (changed[s] && !table.storages()[s].changes)
      tensors.emplace_back(kOutside, bytes_of(table.storages()[s].strong));
  }
  return tensors;
}

NamedTensors StepProgram::unknown_outside(const NamedTensors& known) const {
  std::unordered_set<const void*> others;
  for (const auto& item : known) others.insert(item.second.storage().unsafeGetStorageImpl());
  NamedTensors tensors;
  for (const ValueTable::Value& value : table.values()) {
    const ValueTable::Storage& storage = table.storages()[value.storage];
    const bool outside = storage.external && !storage.contents && !storage.local && !storage.changes && !storage.input;
    if (!outside || !value.original.defined() || others.contains(storage.strong.unsafeGetStorageImpl())) continue;
    tensors.emplace_back(kOutside, value.original);
  }
  return tensors;
}

std::vector<at::Generator> StepProgram::generators() const {
  std::vector<at::Generator> found;
  for (const Op& op : ops) {
    for (const Slot& slot : op.arguments) {
      if (!slot.constant.isGenerator()) continue;
      const at::Generator generator = slot.constant.toGenerator();
      if (std::find(found.begin(), found.end(), generator) == found.end()) found.push_back(generator);
    }
  }
  return found;
}

void StepProgram::mark_changing(const std::vector<Place>& places, const NamedTensors& own) {
  for (const Place& place : places) {
    if (place.op >= ops.size() || place.argument >= ops[place.op].arguments.size()) continue;
    const std::vector<int>& values = ops[place.op].arguments[place.argument].values;
    if (place.item >= values.size() || values[place.item] < 0) continue;
    ValueTable::Storage& storage = table.storage(table.values()[values[place.item]].storage);
    const bool is_own = std::any_of(own.begin(), own.end(), [&storage](const auto& item) {
      return item.second.storage().unsafeGetStorageImpl() == storage.strong.unsafeGetStorageImpl();
    });
    storage.changes = storage.external && !storage.contents && !storage.input && !is_own;
  }
}

bool StepProgram::reads_changing_tensors() const {
  return std::any_of(table.storages().begin(), table.storages().end(),
                     [](const ValueTable::Storage& storage) { return storage.changes; });
}

bool StepProgram::keeps_tensors() const {
  return std::any_of(table.storages().begin(), table.storages().end(),
                     [](const ValueTable::Storage& storage) { return storage.kept; });
}

int64_t heap_bytes_of(const StepProgram& program) {
  constexpr int64_t kOp = sizeof(StepProgram::Op) + 320;     // with its instruction, and what the two hold
  constexpr int64_t kSlot = sizeof(StepProgram::Slot) + 32;  // with its value and the instruction's argument
  // In the table and as the key to it, and as two tensors: the program's, and what the check hands out.
  constexpr int64_t kValue = 2 * (sizeof(ValueTable::Value) + sizeof(c10::TensorImpl)) + 160;
  constexpr int64_t kStorage = sizeof(ValueTable::Storage) + 3 * sizeof(c10::StorageImpl) + 112;  // likewise
  int64_t bytes = kStorage * std::ssize(program.table.storages());
  for (const StepProgram::Op& op : program.ops) {
    bytes += kOp + kSlot * (std::ssize(op.arguments) + std::ssize(op.results));
  }
  for (const BackwardPass& pass : program.backward_passes) bytes += pass.bytes();
  for (const ValueTable::Value& value : program.table.values()) bytes += kValue + 32 * std::ssize(value.sizes);
  return bytes;
}

}  // namespace duet
