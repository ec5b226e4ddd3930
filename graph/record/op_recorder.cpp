#include "graph/record/op_recorder.h"

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include <torch/library.h>

#include <algorithm>
#include <mutex>
#include <optional>

namespace duet {

namespace {

constexpr c10::DispatchKey kRecordKey = c10::DispatchKey::Fake;

std::mutex capture_mutex;            // held for a whole recording
thread_local bool recording_here = false;
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
  require<GraphError>(!recording_here, "[OpRecorder] a step is being recorded within a step that is being recorded; "
                                       "do not run one trainer's step inside another's");
  capture_lock_ = std::unique_lock(capture_mutex);  // another trainer's capture is waited for
  recording_here = true;
  const std::lock_guard lock(recorder_mutex);
  active_recorder = this;
  recording_paused = false;
  c10::impl::tls_set_dispatch_key_included(kRecordKey, true);
}

OpRecorder::~OpRecorder() {
  const std::lock_guard lock(recorder_mutex);
  c10::impl::tls_set_dispatch_key_included(kRecordKey, false);
  active_recorder = nullptr;
  recording_here = false;
}

void OpRecorder::watch_inputs(const MicroBatches& micro_batches) {
  for (const Batch& batch : micro_batches.batches) {
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

void OpRecorder::watch(const std::function<void()>& step) {
  try {
    step();
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

// Then aten::equal gives the same at every step: nothing but shapes or one and the same memory decides. (A NaN makes a
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
  if (name == "aten::_pack_padded_sequence" || name == "aten::_pad_packed_sequence") {
    fail(c10::str(name, " gives shapes that follow from the lengths' values, ", where(), "; pad to a fixed length and mask"));
    return;
  }
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
