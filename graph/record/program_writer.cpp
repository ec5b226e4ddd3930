#include "graph/record/program_writer.h"
#include <algorithm>
#include <ATen/core/enum_tag.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "graph/record/op_rules.h"

namespace duet {

namespace {

using Slot = StepProgram::Slot;

void append_tensors(const c10::IValue& argument, std::vector<at::Tensor>& tensors) {
  if (argument.isTensor() && argument.toTensor().defined()) {
    tensors.push_back(argument.toTensor());
  } else if (argument.isTensorList()) {
    for (const c10::IValue& item : argument.toListRef()) tensors.push_back(item.toTensor());
  }
}

bool holds_tensor(const c10::IValue& argument) {
  if (!argument.isList()) return false;
  const auto items = argument.toListRef();
  return std::any_of(items.begin(), items.end(), [](const c10::IValue& item) { return item.isTensor(); });
}

}  // namespace

ProgramWriter::ProgramWriter(const NamedTensors& parameters, bool strict) : strict_(strict) {
  for (const auto& [name, tensor] : parameters) {
    if (tensor.has_storage()) parameter_names_[tensor.storage().unsafeGetStorageImpl()] = name;
  }
}

void ProgramWriter::watch_inputs(const MicroBatches& micro_batches) {
  for (const Batch& batch : micro_batches.batches) {
    for (const auto& [name, tensor] : batch.items()) {
      if (tensor.has_storage()) input_names_[tensor.storage().unsafeGetStorageImpl()] = name;
    }
  }
}

void ProgramWriter::fail(const std::string& reason) {
  if (failure_.empty()) failure_ = reason;
  throw_if_refused();
}

void ProgramWriter::throw_if_refused() const {
  if (!strict_ || failure_.empty()) return;
  throw GraphError("[GraphTrainer] the step cannot be captured: " + failure_ + "; or set graph.fallback to auto");
}

void ProgramWriter::fail_here(const std::string& what, const std::string& way_out) {
  const std::string where = last_parameter_.empty() ? "before the first parameter is read"
                                                    : "after the last read of parameter '" + last_parameter_ + "'";
  fail(what + ", " + where + "; " + way_out);
}

ProgramWriter::Call ProgramWriter::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (const auto obstacle = find_obstacle(op, stack)) fail_here(obstacle->what, obstacle->way_out);
  Call call{{op, {}, {}, {}, is_random(op), at::GradMode::is_enabled()}, {}};
  const bool moves = op.hasTag(at::Tag::inplace_view);  // neither reads nor writes elements
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = stack[stack.size() - arguments.size() + i];
    const bool written = writes(arguments[i]);
    call.op.arguments.push_back(read_slot(argument, written && (overwrites(op) || moves)));
    if (written) append_tensors(argument, call.written);
  }
  for (const at::Tensor& tensor : call.written) check_write(op, tensor);
  return call;
}

void ProgramWriter::after(Call call, const torch::jit::Stack& stack) {
  mark_written(call.op, call.written);
  const bool empty_like = is_empty_like(call.op.handle);
  for (std::size_t i = stack.size() - call.op.handle.schema().returns().size(); i < stack.size(); ++i) {
    call.op.results.push_back(result_slot(stack[i], empty_like));
  }
  program_.ops.push_back(std::move(call.op));
}

Slot ProgramWriter::read_slot(const c10::IValue& argument, bool overwritten) {
  Slot slot;
  if (argument.isTensor() && argument.toTensor().defined()) {
    slot.kind = Slot::Kind::kValue;
    slot.values.push_back(read(argument.toTensor(), overwritten));
  } else if (argument.isTensorList()) {
    slot.kind = Slot::Kind::kList;
    for (const c10::IValue& item : argument.toListRef()) slot.values.push_back(read(item.toTensor(), overwritten));
  } else if (holds_tensor(argument)) {  // Tensor?[]; its type object differs when it comes from a script
    slot.kind = Slot::Kind::kOptionalList;
    for (const c10::IValue& item : argument.toListRef()) {
      const bool defined = item.isTensor() && item.toTensor().defined();
      slot.values.push_back(defined ? read(item.toTensor(), /*overwritten=*/false) : -1);
    }
  } else {
    slot.constant = argument;
  }
  return slot;
}

int ProgramWriter::read(const at::Tensor& tensor, bool overwritten) {
  if (!tensor.has_storage() || tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_conj() ||
      tensor.is_neg()) {
    fail_here(c10::str("a ", tensor.layout(), " tensor (sparse, quantized, or a lazy conjugate) is used"),
              "use dense tensors");
    return -1;
  }
  const bool is_new = table_.find_storage(tensor) < 0;
  const int index = table_.add_storage(tensor, /*producer=*/-1);
  const ValueTable::Storage& storage = table_.storages()[index];
  const auto name = parameter_names_.find(tensor.storage().unsafeGetStorageImpl());
  const bool owns_nothing = is_new && storage.strong.data_ptr().get_context() == nullptr && storage.bytes > 0;
  if (owns_nothing && name == parameter_names_.end()) {
    fail_here("a tensor over memory that it does not own (from_blob) is read",
              "clone() it where it is made, outside the step, or put it into the batch");
  }
  if (storage.uninitialized && !(overwritten && tensor.nbytes() >= storage.bytes)) table_.make_constant(index, tensor);
  if (name != parameter_names_.end()) last_parameter_ = name->second;
  return table_.add(tensor, index, storage.external);
}

void ProgramWriter::check_write(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  if (!failure_.empty() || !tensor.has_storage()) return;
  const auto input = input_names_.find(tensor.storage().unsafeGetStorageImpl());
  if (input != input_names_.end()) {
    fail_here("the step writes into the batch tensor '" + input->second + "' (" + full_name(op) + ")",
              "use the op that gives a new tensor");
    return;
  }
  const int index = table_.find_storage(tensor);
  const ValueTable::Storage& storage = table_.storages()[index];
  if (storage.external && storage.producer >= 0) {
    turn_into_clone(index);
  } else if (storage.external && op.hasTag(at::Tag::inplace_view)) {
    fail_here(full_name(op) + " changes the shape of a tensor from outside the step", "use the op that gives a view");
  }
}

// A tensor that the host filled within the step and that an op changes now: every run must start from what the host
// wrote. The op that allocated it becomes a copy of that.
void ProgramWriter::turn_into_clone(int index) {
  StepProgram::Op& allocation = program_.ops[table_.storages()[index].producer];
  const at::NoGradGuard no_grad;
  const int made = allocation.results.front().values.front();
  const at::Tensor live = tensor_at(table_.storages()[index].strong, table_.values()[made]);
  const at::Tensor constant = live.clone();
  if (constant.strides() != live.strides()) {
    fail_here("a tensor with gaps is filled by the host", "make it contiguous");
    return;
  }
  static const c10::OperatorHandle clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  const int source = table_.add(constant, table_.add_storage(constant, /*producer=*/-1), /*keep=*/true);
  allocation.handle = clone;
  allocation.arguments = {Slot{Slot::Kind::kValue, {}, {source}}, Slot()};
  table_.make_internal(index);
}

// After the op ran. What it resized (an empty tensor given as `out`) is written at its new size.
void ProgramWriter::mark_written(StepProgram::Op& op, const std::vector<at::Tensor>& written) {
  if (!failure_.empty()) return;
  const bool moves = op.handle.hasTag(at::Tag::inplace_view);
  for (const at::Tensor& tensor : written) {
    const int index = table_.find_storage(tensor);
    if (index < 0) {
      fail_here(op.handle.schema().name() + " gives a tensor other memory", "copy_() into it");
      return;
    }
    ValueTable::Storage& storage = table_.storage(index);
    storage.bytes = tensor.storage().nbytes();
    storage.uninitialized = storage.uninitialized && moves;
    op.written.push_back(table_.add(tensor, index, storage.external));
  }
  if (moves || written.empty()) return;
  std::size_t next = 0;
  const auto& arguments = op.handle.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!writes(arguments[i])) continue;
    for (int& value : op.arguments[i].values) value = op.written[next++];
  }
}

Slot ProgramWriter::result_slot(const c10::IValue& result, bool empty_like) {
  Slot slot;
  if (result.isTensor()) {
    slot.kind = Slot::Kind::kValue;
    slot.values.push_back(add_result(result.toTensor(), empty_like));
  } else if (result.isTensorList()) {
    slot.kind = Slot::Kind::kList;
    for (const c10::IValue& item : result.toListRef()) slot.values.push_back(add_result(item.toTensor(), empty_like));
  } else {
    slot.constant = result;
  }
  return slot;
}

int ProgramWriter::add_result(const at::Tensor& tensor, bool empty_like) {
  if (!tensor.defined()) return -1;
  if (!tensor.has_storage() || tensor.layout() != at::kStrided) {
    fail_here(c10::str("an op gives a ", tensor.layout(), " tensor"), "use dense tensors");
    return -1;
  }
  const bool is_new = table_.find_storage(tensor) < 0;
  const int index = table_.add_storage(tensor, static_cast<int>(program_.ops.size()));
  if (empty_like && is_new) table_.storage(index).uninitialized = true;
  return table_.add(tensor, index, /*keep=*/false);  // a view of a parameter would keep autograd's graph alive
}

}  // namespace duet
