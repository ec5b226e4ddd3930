#include <duet/graph/op_recorder.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include <duet/core/error.h>
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>

namespace duet {

namespace {

constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::Fake;

std::recursive_mutex recorder_mutex;  // autograd may run backward in threads of its own
OpRecorder* active_recorder = nullptr;
bool recording_paused = false;

// Moves a generator. The tag is missing on some (cauchy_, geometric_, ...).
bool is_random(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return op.hasTag(at::Tag::nondeterministic_seeded) ||
         std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& a) { return a.name() == "generator"; });
}

// Whether the op writes its changed arguments without reading them.
bool overwrites(const c10::OperatorHandle& op) {
  const std::string& name = op.schema().name();
  if (name == "aten::copy_" || name == "aten::fill_" || name == "aten::zero_") return true;
  if (!op.schema().arguments().empty() && op.schema().arguments().back().is_out()) return true;
  return is_random(op) && name.back() == '_' && name.find("rrelu") == std::string::npos;
}

void append_tensors(const c10::IValue& argument, std::vector<at::Tensor>& tensors) {
  if (argument.isTensor() && argument.toTensor().defined()) {
    tensors.push_back(argument.toTensor());
  } else if (argument.isTensorList()) {
    for (const c10::IValue& item : argument.toListRef()) tensors.push_back(item.toTensor());
  }
}

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
  const auto& schema_arguments = op.schema().arguments();
  const std::size_t count = schema_arguments.size();
  recorder->check(op, *stack);
  Tape::Op entry{op, {}, {}, {}, is_random(op), at::GradMode::is_enabled()};
  const bool moves = op.hasTag(at::Tag::inplace_view);  // neither reads nor writes elements
  std::vector<at::Tensor> written;
  for (std::size_t i = 0; i < count; ++i) {
    const c10::IValue& argument = (*stack)[stack->size() - count + i];
    const bool writes = schema_arguments[i].alias_info() != nullptr && schema_arguments[i].alias_info()->isWrite();
    entry.arguments.push_back(recorder->read_slot(argument, writes && (overwrites(op) || moves)));
    if (writes) append_tensors(argument, written);
  }
  for (const at::Tensor& tensor : written) recorder->check_write(op, tensor);
  op.redispatchBoxed(below, stack);
  recorder->mark_written(entry, written);
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

void OpRecorder::watch_inputs(const Window& window) {
  for (const Batch& batch : window.batches) {
    for (const auto& [name, tensor] : batch.items()) {
      if (tensor.has_storage()) input_names_[tensor.storage().unsafeGetStorageImpl()] = name;
    }
  }
}

void OpRecorder::pause() { recording_paused = true; }

void OpRecorder::resume() { recording_paused = false; }

void OpRecorder::fail(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  if (strict_) refuse();
}

void OpRecorder::refuse() const {
  throw GraphError("[GraphTrainer] the step cannot be captured: " + failure_ + "; or set graph.fallback to auto");
}

void OpRecorder::watch(const std::function<void()>& update) {
  try {
    update();
  } catch (const GraphError&) {
    throw;
  } catch (const std::exception&) {
    if (strict_ && !failure_.empty()) refuse();
    throw;
  }
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

// Then aten::equal gives the same at every update: nothing but shapes or one and the same memory decides. (A NaN makes a
// tensor differ from itself; what depends on it is NaN as well.)
bool equal_by_layout(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::equal") return false;
  const at::Tensor& a = stack[stack.size() - 2].toTensor();
  const at::Tensor& b = stack.back().toTensor();
  if (a.sizes() != b.sizes()) return true;
  return a.is_alias_of(b) && a.storage_offset() == b.storage_offset() && a.strides() == b.strides() &&
         a.scalar_type() == b.scalar_type();
}

}  // namespace

void OpRecorder::check(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::string name = full_name(op);
  if (equal_by_layout(op, stack)) return;
  if (op.schema().name() == "aten::_local_scalar_dense" || op.schema().name() == "aten::equal" ||
      (op.hasTag(at::Tag::data_dependent_output) && op.schema().name() != "aten::_assert_async")) {
    fail(c10::str(name, " reads a value back to the host, ", where(),
                  "; keep it a tensor (item(), bool(tensor) and printing are what cause this)"));
  } else if (op.hasTag(at::Tag::dynamic_output_shape) && !indexes_by_integers(op, stack)) {
    fail(c10::str(name, " has an output whose shape depends on values, ", where(),
                  "; use a form of fixed shape (a mask and where() instead of nonzero or boolean indexing)"));
  }
}

// Before the op runs.
void OpRecorder::check_write(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  if (!failure_.empty() || !tensor.has_storage()) return;
  const c10::StorageImpl* impl = tensor.storage().unsafeGetStorageImpl();
  const auto input = input_names_.find(impl);
  if (input != input_names_.end()) {
    fail("the step writes into the batch tensor '" + input->second + "' (" + full_name(op) + "), " + where() +
         "; use the op that gives a new tensor");
    return;
  }
  const int storage = tape_.storage_of.at(impl);
  const Tape::Storage& entry = tape_.storages[storage];
  if (entry.external && entry.producer >= 0) {
    make_private(storage);
  } else if (entry.external && op.hasTag(at::Tag::inplace_view)) {
    fail(full_name(op) + " changes the shape of a tensor from outside the step, " + where() + "; use the op that gives a view");
  }
}

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

Tape::Slot OpRecorder::read_slot(const c10::IValue& argument, bool overwritten) {
  Tape::Slot slot;
  if (argument.isTensor() && argument.toTensor().defined()) {
    slot.kind = Tape::Slot::Kind::kValue;
    slot.values.push_back(read(argument.toTensor(), overwritten));
  } else if (argument.isTensorList()) {
    slot.kind = Tape::Slot::Kind::kList;
    for (const c10::IValue& item : argument.toListRef()) slot.values.push_back(read(item.toTensor(), overwritten));
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

// After the op ran. What it resized (an empty tensor given as `out`) is written at its new size.
void OpRecorder::mark_written(Tape::Op& entry, const std::vector<at::Tensor>& written) {
  if (!failure_.empty()) return;
  const bool moves = entry.handle.hasTag(at::Tag::inplace_view);
  for (const at::Tensor& tensor : written) {
    const auto known = tape_.storage_of.find(tensor.storage().unsafeGetStorageImpl());
    if (known == tape_.storage_of.end()) {
      fail(full_name(entry.handle) + " gives a tensor other memory, " + where() + "; copy_() into it");
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
