#include "graph/record/op_recorder.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>

#include <algorithm>

// How the tensors of a call become values of the tape.

namespace duet {

// A tensor that the host filled within the step and that an op changes now: every run must start from what the host wrote.
// The op that allocated it becomes a copy of that.
void OpRecorder::make_private(int index) {
  Tape::Op& allocation = tape_.ops[tape_.storages[index].producer];
  const Tape::Value made = tape_.values[allocation.results.front().values.front()];
  const at::TensorOptions options = at::TensorOptions().dtype(made.dtype).device(tape_.storages[index].device);
  const at::NoGradGuard no_grad;
  const at::Tensor live = at::empty({0}, options).set_(tape_.storages[index].strong, made.offset, made.sizes, made.strides);
  const at::Tensor constant = live.clone();
  if (constant.strides() != live.strides()) {
    fail("a tensor with gaps is filled by the host, " + where() + "; make it contiguous");
    return;
  }
  const int source = place(constant, storage_index(constant, /*producer=*/-1), /*keep=*/true);
  static const c10::OperatorHandle clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  Tape::Slot argument;
  argument.kind = Tape::Slot::Kind::kValue;
  argument.values.push_back(source);
  allocation.handle = clone;
  allocation.arguments = {argument, Tape::Slot()};
  tape_.storages[index].external = false;
  tape_.storages[index].strong = c10::Storage();
  for (Tape::Value& value : tape_.values) {
    if (value.storage == index) value.original.reset();
  }
}

int OpRecorder::storage_index(const at::Tensor& tensor, int producer) {
  c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  const auto [entry, added] = tape_.storage_of.try_emplace(impl, static_cast<int>(tape_.storages.size()));
  if (added) {
    Tape::Storage storage;
    storage.weak = c10::weak_intrusive_ptr<c10::StorageImpl>(
        c10::intrusive_ptr<c10::StorageImpl>::reclaim_copy(impl));
    storage.bytes = impl->nbytes();
    storage.device = tensor.device();
    storage.external = producer < 0;
    storage.producer = producer;
    if (storage.external) storage.strong = tensor.storage();
    tape_.storages.push_back(std::move(storage));
  }
  return entry->second;
}

int OpRecorder::place(const at::Tensor& tensor, int storage, bool keep) {
  const int known = tape_.find(tensor);
  if (known >= 0) return known;
  Tape::Value value{storage, tensor.storage_offset(), tensor.sizes().vec(), tensor.strides().vec(), tensor.scalar_type(), {}};
  if (keep) value.original = tensor;
  const int index = static_cast<int>(tape_.values.size());
  tape_.value_of.emplace(value_hash(storage, tensor), index);
  tape_.values.push_back(std::move(value));
  return index;
}

int OpRecorder::read(const at::Tensor& tensor, bool overwritten) {
  if (!tensor.has_storage() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() || tensor.is_neg()) {
    fail(c10::str("a ", tensor.layout(), " tensor (sparse, quantized, or a lazy conjugate) is used, ", where(),
                  "; use dense tensors"));
    return -1;
  }
  const std::size_t known = tape_.storages.size();
  const int storage = storage_index(tensor, /*producer=*/-1);
  Tape::Storage& entry = tape_.storages[storage];
  if (tape_.storages.size() > known && entry.strong.data_ptr().get_context() == nullptr && entry.bytes > 0 &&
      parameter_names_.count(tensor.storage().unsafeGetStorageImpl()) == 0) {
    fail("a tensor over memory that it does not own (from_blob) is read, " + where() +
         "; clone() it where it is made, outside the step, or put it into the batch");
  }
  if (entry.uninitialized && !(overwritten && tensor.nbytes() >= entry.bytes)) {
    // Written by the host since: what it holds now is a constant of the step.
    entry.strong = tensor.storage();
    entry.external = true;
    entry.uninitialized = false;
  }
  const auto name = parameter_names_.find(tensor.storage().unsafeGetStorageImpl());
  if (name != parameter_names_.end()) last_parameter_ = name->second;
  return place(tensor, storage, entry.external);
}

namespace {

bool holds_tensor(const c10::IValue& argument) {
  if (!argument.isList()) return false;
  const auto items = argument.toListRef();
  return std::any_of(items.begin(), items.end(), [](const c10::IValue& item) { return item.isTensor(); });
}

}  // namespace

Tape::Slot OpRecorder::read_slot(const c10::IValue& argument, bool overwritten) {
  Tape::Slot slot;
  if (argument.isTensor() && argument.toTensor().defined()) {
    slot.kind = Tape::Slot::Kind::kValue;
    slot.values.push_back(read(argument.toTensor(), overwritten));
  } else if (argument.isTensorList()) {
    slot.kind = Tape::Slot::Kind::kList;
    for (const c10::IValue& item : argument.toListRef()) slot.values.push_back(read(item.toTensor(), overwritten));
  } else if (holds_tensor(argument)) {  // Tensor?[]; its type object differs when it comes from a script
    slot.kind = Tape::Slot::Kind::kOptionalList;
    for (const c10::IValue& item : argument.toListRef()) {
      slot.values.push_back(item.isTensor() && item.toTensor().defined() ? read(item.toTensor()) : -1);
    }
  } else {
    slot.constant = argument;
  }
  return slot;
}

// After the op ran. What it resized (an empty tensor given as `out`) is written at its new size.
void OpRecorder::mark_written(Tape::Op& entry, const std::vector<at::Tensor>& written) {
  if (!failure_.empty()) return;
  const bool moves = entry.handle.hasTag(at::Tag::inplace_view);
  for (const at::Tensor& tensor : written) {
    const auto known = tape_.storage_of.find(tensor.storage().unsafeGetStorageImpl());
    if (known == tape_.storage_of.end()) {
      fail(entry.handle.schema().name() + " gives a tensor other memory, " + where() + "; copy_() into it");
      return;
    }
    const int storage = known->second;
    tape_.storages[storage].bytes = tensor.storage().nbytes();
    tape_.storages[storage].uninitialized = tape_.storages[storage].uninitialized && moves;
    entry.written.push_back(place(tensor, storage, tape_.storages[storage].external));
  }
  if (moves || written.empty()) return;
  std::size_t next = 0;
  const auto& arguments = entry.handle.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
    for (int& value : entry.arguments[i].values) value = entry.written[next++];
  }
}

Tape::Slot OpRecorder::result_slot(const c10::IValue& result, bool empty_like) {
  Tape::Slot slot;
  const int producer = static_cast<int>(tape_.ops.size());
  const auto add = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return -1;
    if (!tensor.has_storage() || tensor.layout() != at::kStrided) {
      fail(c10::str("an op gives a ", tensor.layout(), " tensor, ", where(), "; use dense tensors"));
      return -1;
    }
    const std::size_t known = tape_.storages.size();
    const int storage = storage_index(tensor, producer);
    if (empty_like && tape_.storages.size() > known) tape_.storages[storage].uninitialized = true;
    return place(tensor, storage, /*keep=*/false);  // a view of a parameter would keep autograd's graph alive
  };
  if (result.isTensor()) {
    slot.kind = Tape::Slot::Kind::kValue;
    slot.values.push_back(add(result.toTensor()));
  } else if (result.isTensorList()) {
    slot.kind = Tape::Slot::Kind::kList;
    for (const c10::IValue& item : result.toListRef()) slot.values.push_back(add(item.toTensor()));
  } else {
    slot.constant = result;
  }
  return slot;
}

}  // namespace duet
