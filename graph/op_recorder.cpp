#include <duet/graph/op_recorder.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <torch/library.h>

#include <mutex>
#include <optional>

namespace duet {

namespace {

constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::Fake;

std::recursive_mutex recorder_mutex;  // autograd may run backward in threads of its own
OpRecorder* active_recorder = nullptr;
bool recording_paused = false;

}  // namespace

void record_op(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const c10::DispatchKeySet below = keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kRecordKey);
  const c10::impl::ExcludeDispatchKeyGuard not_again(kRecordKey);
  const std::lock_guard lock(recorder_mutex);
  OpRecorder* recorder = active_recorder;
  if (recorder == nullptr || recording_paused || !recorder->failure_.empty()) {
    op.redispatchBoxed(below, stack);
    return;
  }
  const std::size_t count = op.schema().arguments().size();
  recorder->check(op, *stack);
  Tape::Op entry{op, {}, {}, {}, op.hasTag(at::Tag::nondeterministic_seeded), at::GradMode::is_enabled()};
  for (std::size_t i = stack->size() - count; i < stack->size(); ++i) {
    entry.arguments.push_back(recorder->read_slot((*stack)[i]));
  }
  op.redispatchBoxed(below, stack);
  recorder->mark_written(op, entry);
  const bool empty_like = is_empty_like(op);
  const std::size_t results = op.schema().returns().size();
  for (std::size_t i = stack->size() - results; i < stack->size(); ++i) {
    entry.results.push_back(recorder->result_slot((*stack)[i], empty_like));
  }
  recorder->tape_.ops.push_back(std::move(entry));
}

namespace {

// Registered at first use: a static initialiser would be dropped when duet is linked as a static library.
void register_fallback() {
  static const bool registered = [] {
    static torch::Library library(torch::Library::IMPL, "_", kRecordKey, __FILE__, __LINE__);
    library.fallback(torch::CppFunction::makeFromBoxedFunction<&record_op>());
    return true;
  }();
  (void)registered;
}

}  // namespace

OpRecorder::OpRecorder(const NamedTensors& parameters, bool strict) : strict_(strict) {
  register_fallback();
  for (const auto& [name, tensor] : parameters) {
    if (tensor.has_storage()) parameter_names_[tensor.storage().unsafeGetStorageImpl()] = name;
  }
  const std::lock_guard lock(recorder_mutex);
  require<GraphError>(active_recorder == nullptr, "[OpRecorder] another step is being recorded in this process; "
                                                  "let one GraphTrainer capture at a time");
  active_recorder = this;
  recording_paused = false;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

OpRecorder::~OpRecorder() {
  const std::lock_guard lock(recorder_mutex);
  c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
  active_recorder = nullptr;
}

void OpRecorder::pause() { recording_paused = true; }

void OpRecorder::resume() { recording_paused = false; }

void OpRecorder::fail(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  if (strict_) throw GraphError("[GraphTrainer] the step cannot be captured: " + reason + "; or set graph.fallback to auto");
}

std::string OpRecorder::where() const {
  return last_parameter_.empty() ? "before the first parameter is read"
                                 : "after the last read of parameter '" + last_parameter_ + "'";
}

namespace {

std::string full_name(const c10::OperatorHandle& op) {
  const std::string& overload = op.schema().overload_name();
  return op.schema().name() + (overload.empty() ? "" : "." + overload);
}

bool is_boolean_mask(const c10::IValue& index) {
  if (!index.isTensor() || !index.toTensor().defined()) return false;
  const at::ScalarType type = index.toTensor().scalar_type();
  return type == at::kBool || type == at::kByte;
}

// index with integer tensors has a fixed output shape, although its tag says otherwise.
bool indexes_by_integers(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::index") return false;
  for (const c10::IValue& argument : stack) {
    if (!argument.isList()) continue;
    for (const c10::IValue& index : argument.toListRef()) {
      if (is_boolean_mask(index)) return false;
    }
  }
  return true;
}

}  // namespace

void OpRecorder::check(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string name = full_name(op);
  if (op.schema().name() == "aten::_local_scalar_dense" || op.schema().name() == "aten::equal" ||
      (op.hasTag(at::Tag::data_dependent_output) && op.schema().name() != "aten::_assert_async")) {
    fail(c10::str(name, " reads a value back to the host, ", where(),
                  "; keep it a tensor (item(), bool(tensor) and printing are what cause this)"));
  } else if (op.hasTag(at::Tag::dynamic_output_shape) && !indexes_by_integers(op, stack)) {
    fail(c10::str(name, " has an output whose shape depends on values, ", where(),
                  "; use a form of fixed shape (a mask and where() instead of nonzero or boolean indexing)"));
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

int OpRecorder::read(const at::Tensor& tensor) {
  if (!tensor.has_storage() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() || tensor.is_neg()) {
    fail(c10::str("a ", tensor.layout(), " tensor (sparse, quantized, or a lazy conjugate) is used, ", where(),
                  "; use dense tensors"));
    return -1;
  }
  const int storage = storage_index(tensor, /*producer=*/-1);
  Tape::Storage& entry = tape_.storages[storage];
  if (entry.uninitialized) {
    // Written by the host since: what it holds now is a constant of the step.
    entry.strong = tensor.storage();
    entry.external = true;
    entry.uninitialized = false;
  }
  const auto name = parameter_names_.find(tensor.storage().unsafeGetStorageImpl());
  if (name != parameter_names_.end()) last_parameter_ = name->second;
  return place(tensor, storage, entry.external);
}

Tape::Slot OpRecorder::read_slot(const c10::IValue& argument) {
  Tape::Slot slot;
  if (argument.isTensor() && argument.toTensor().defined()) {
    slot.kind = Tape::Slot::Kind::kValue;
    slot.values.push_back(read(argument.toTensor()));
  } else if (argument.isTensorList()) {
    slot.kind = Tape::Slot::Kind::kList;
    for (const c10::IValue& item : argument.toListRef()) slot.values.push_back(read(item.toTensor()));
  } else if (argument.isOptionalTensorList()) {
    slot.kind = Tape::Slot::Kind::kOptionalList;
    for (const c10::IValue& item : argument.toListRef()) {
      slot.values.push_back(item.isTensor() && item.toTensor().defined() ? read(item.toTensor()) : -1);
    }
  } else {
    slot.constant = argument;
  }
  return slot;
}

void OpRecorder::mark_written(const c10::OperatorHandle& op, Tape::Op& entry) {
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].alias_info() == nullptr || !arguments[i].alias_info()->isWrite()) continue;
    for (const int value : entry.arguments[i].values) {
      if (value < 0) continue;
      entry.written.push_back(value);
      tape_.storages[tape_.values[value].storage].uninitialized = false;
    }
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

void OpRecorder::self_check() {
  static const bool works = [] {
    const OpRecorder recorder({});
    at::Tensor probe = at::empty({1});
    probe.fill_(1);
    return recorder.tape().ops.size() == 2;
  }();
  require<GraphError>(works, "[OpRecorder] this LibTorch does not route calls through DispatchKey::Fake; duet's graph "
                             "mode supports LibTorch 2.11, use that version or mode eager");
}

}  // namespace duet
