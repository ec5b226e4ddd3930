#include "graph/record/program_writer.h"
#include <algorithm>
#include <ATen/core/enum_tag.h>
#include <c10/util/StringUtil.h>
#include "base/detail/bits.h"
#include "base/detail/op_rules.h"
#include "base/detail/stack_tensors.h"
#include "base/error.h"
#include "core/detail/user_place.h"
#include "graph/record/host_reads.h"
#include "graph/record/step_results.h"

namespace duet {

namespace {

using Slot = StepProgram::Slot;

bool holds_tensor(const c10::IValue& argument) {
  if (!argument.isList()) return false;
  const auto items = argument.toListRef();
  return std::any_of(items.begin(), items.end(), [](const c10::IValue& item) { return item.isTensor(); });
}

// What an argument or result is, with add(tensor) for the value of each tensor.
template <class Add>
Slot slot_of(const c10::IValue& value, Add add) {
  Slot slot;
  if (value.isTensor()) {
    slot.kind = Slot::Kind::kValue;
    slot.values.push_back(add(value.toTensor()));
  } else if (value.isTensorList() || holds_tensor(value)) {  // Tensor?[] is of another type when it comes from a script
    slot.kind = value.isTensorList() ? Slot::Kind::kList : Slot::Kind::kOptionalList;
    for (const c10::IValue& item : value.toListRef()) {
      slot.values.push_back(item.isTensor() && item.toTensor().defined() ? add(item.toTensor()) : -1);
    }
  } else {
    slot.constant = value;
  }
  return slot;
}

}  // namespace

ProgramWriter::ProgramWriter(const NamedTensors& parameters, bool strict) : strict_(strict) {
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.has_storage()) continue;
    parameter_names_[tensor.storage().unsafeGetStorageImpl()] = name;
    bytes_at_hand_ += static_cast<int64_t>(tensor.nbytes());
  }
  note_random_state();
}

void ProgramWriter::fail(const Obstacle& obstacle, const std::string& where) {
  if (tells_all()) listener_(where.empty() ? "" : op_, obstacle, where);
  const std::string line = where.empty() ? "" : user_place().value_or("");
  if (failure_.empty()) {
    failure_ = obstacle.what + (where.empty() ? "" : ", " + where) + (line.empty() ? "" : ", at " + line) + "; " +
               obstacle.way_out;
  }
  throw_if_refused();
}

void ProgramWriter::fail_here(const std::string& what, const std::string& way_out) {
  fail({what, way_out}, place_after(last_parameter_));
}

void ProgramWriter::throw_if_refused() const {
  if (!strict_ || failure_.empty()) return;
  throw GraphError("[GraphTrainer] the step cannot be captured: " + failure_ + "; or set graph.fallback to auto");
}

// Tensors that the host makes out of numbers are constants of the step. Larger ones are not: a comparison of each would
// cost more than to compute them.
constexpr std::size_t kMaxConstantBytes = std::size_t{1} << 20;

bool ProgramWriter::is_host_made(const at::Tensor& tensor) const {
  if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) return true;
  const int index = table_.find_storage(tensor);
  return index >= 0 && table_.storages()[index].host && table_.storages()[index].bytes <= kMaxConstantBytes;
}

bool ProgramWriter::has_no_host_alias(const at::Tensor& tensor) const {
  const int index = table_.find_storage(tensor);
  if (index < 0) return false;
  const ValueTable::Storage& storage = table_.storages()[index];
  return !storage.contents && !storage.host && !storage.kept_by_op && !inputs_.is_input(tensor);
}

bool ProgramWriter::runs_on_host(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  if (is_empty_like(op)) return true;
  const auto& schema = op.schema();
  if (is_random(op) || !hidden_writes(op).empty() || schema.returns().empty()) return false;
  bool on_host = true;
  for (const auto& result : schema.returns()) on_host = on_host && result.type()->kind() == c10::TypeKind::TensorType;
  for_each_tensor(stack, schema.arguments().size(),
                  [&](const at::Tensor& tensor) { on_host = on_host && is_host_made(tensor); });
  return on_host;
}

// A value of a tensor that the host made is compared with the recorded one like all of the tensor.
bool ProgramWriter::reads_constants_only(const c10::OperatorHandle& op, const torch::jit::Stack& stack) const {
  if (!is_host_read(op)) return false;
  bool constants = true;
  for_each_tensor(stack, op.schema().arguments().size(), [&](const at::Tensor& tensor) {
    const int index = table_.find_storage(tensor);
    const bool constant = index >= 0 && table_.storages()[index].external && table_.storages()[index].contents;
    constants = constants && (constant || is_host_made(tensor));
  });
  return constants;
}

bool ProgramWriter::note_read(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (!guards_reads_ || !is_host_read(op)) return false;
  std::vector<at::Tensor> read;
  for_each_tensor(stack, op.schema().arguments().size(), [&](const at::Tensor& tensor) { read.push_back(tensor); });
  if (!can_be_read_before(program_, read, bytes_at_hand_)) return false;
  program_.reads.push_back(program_.ops.size());
  return true;
}

ProgramWriter::Call ProgramWriter::before(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (tells_all()) op_ = full_name(op);
  const auto obstacle = find_obstacle(op, stack);
  if (obstacle && !reads_constants_only(op, stack) && !note_read(op, stack))
    fail_here(obstacle->what, obstacle->way_out);
  Call call{{op, {}, {}, {}, draws(op, stack), thread_settings()}, {}};
  call.op.on_host = runs_on_host(op, stack);
  if (call.op.random) watch_generator();
  const bool moves = op.hasTag(at::Tag::inplace_view);  // neither reads nor writes elements
  const auto& arguments = op.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const c10::IValue& argument = stack[stack.size() - arguments.size() + i];
    const bool written = writes(arguments[i]);
    call.op.arguments.push_back(read_slot(argument, written && (overwrites(op) || moves), call.op));
    if (written) for_each_tensor(argument, [&](const at::Tensor& tensor) { call.written.push_back(tensor); });
  }
  std::vector<at::Tensor> changed = call.written;
  for (const std::size_t hidden : hidden_writes(op)) {
    for_each_tensor(stack[stack.size() - arguments.size() + hidden],
                    [&](const at::Tensor& tensor) { changed.push_back(tensor); });
  }
  for (const at::Tensor& tensor : changed) inputs_.note_write(full_name(op), tensor);
  for (const at::Tensor& tensor : call.written) check_write(op, tensor);
  call.op.place = last_parameter_;
  return call;
}

// A generator that the host sets or draws from between its ops would move otherwise in a replay.
void ProgramWriter::watch_generator() {
  if (!generator_.moved()) return;
  fail_here("the host draws from the default random generator, or sets its state (checkpointing that restores it?)",
            "draw with tensor ops only");
}

void ProgramWriter::note_end() {
  op_.clear();
  watch_generator();
}

void ProgramWriter::after(Call call, const torch::jit::Stack& stack) {
  if (is_empty_like(call.op.handle)) fill_empty(stack.back().toTensor());
  mark_written(call.op, call.written);
  for (std::size_t i = stack.size() - call.op.handle.schema().returns().size(); i < stack.size(); ++i) {
    call.op.results.push_back(
        slot_of(stack[i], [&](const at::Tensor& tensor) { return add_result(tensor, call.op.on_host); }));
  }
  if (call.op.random) note_random_state();
  program_.ops.push_back(std::move(call.op));
}

Slot ProgramWriter::read_slot(const c10::IValue& argument, bool overwritten, StepProgram::Op& op) {
  const bool is_none = argument.isTensor() && !argument.toTensor().defined();
  if (is_none) return {Slot::Kind::kConstant, argument, {}};
  return slot_of(argument, [&](const at::Tensor& tensor) { return read(tensor, overwritten, op); });
}

int ProgramWriter::read(const at::Tensor& tensor, bool overwritten, StepProgram::Op& op) {
  if (const char* kind = special_kind(tensor)) {
    fail_here(std::string(kind) + " is used", "use dense tensors");
    return -1;
  }
  if (const std::string by = inputs_.overwritten(tensor); !by.empty() && !overwritten) {
    fail_here("the step reads the batch tensor '" + inputs_.name_of(tensor) + "' after it has written to " + by +
                  ", with which it shares memory",
              "clone() the tensor before it goes into the batch");
  }
  const bool is_new = table_.find_storage(tensor) < 0;
  const int index = table_.add_storage(tensor, /*producer=*/-1);
  ValueTable::Storage& storage = table_.storage(index);
  if (is_new && !tensor.is_inference())
    storage.version = tensor._version();  // find_versions() makes a difference of it
  check_memory(tensor, is_new, storage);
  const bool overwrites_all = overwritten && tensor.nbytes() >= storage.bytes;
  if (storage.host && !op.on_host && !overwrites_all) table_.make_constant(index);
  if (storage.host && !op.on_host) storage.host = false;
  if (storage.external && storage.contents) use_constant(index, op);
  const auto name = parameter_names_.find(tensor.storage().unsafeGetStorageImpl());
  if (name != parameter_names_.end()) last_parameter_ = name->second;
  return table_.add(tensor, index, /*keep=*/storage.external && !storage.contents);
}

void ProgramWriter::check_memory(const at::Tensor& tensor, bool is_new, const ValueTable::Storage& storage) {
  const bool owns_nothing = is_new && storage.strong.data_ptr().get_context() == nullptr && storage.bytes > 0;
  if (!owns_nothing || parameter_names_.count(tensor.storage().unsafeGetStorageImpl()) > 0) return;
  fail_here("a tensor over memory that it does not own (from_blob) is read",
            "clone() it where it is made, outside the step, or put it into the batch");
}

// What the host writes into it from here on would be lost.
void ProgramWriter::use_constant(int index, StepProgram::Op& op) {
  const ValueTable::Storage& storage = table_.storages()[index];
  const c10::Storage live(storage.weak->lock());
  if (live && !same_bits(bytes_of(live), bytes_of(storage.contents))) {
    fail_here("the host changes a tensor of numbers after the step has used it", "make a new one");
  }
  op.constants.push_back(index);
}

void ProgramWriter::check_write(const c10::OperatorHandle& op, const at::Tensor& tensor) {
  if ((!failure_.empty() && !tells_all()) || !tensor.has_storage()) return;
  if (inputs_.is_input(tensor)) {
    fail_here("the step writes into the batch tensor '" + inputs_.name_of(tensor) + "' (" + full_name(op) + ")",
              "use the op that gives a new tensor");
    return;
  }
  const int index = table_.find_storage(tensor);
  if (index < 0) return;
  const ValueTable::Storage& storage = table_.storages()[index];
  if (storage.external && storage.producer >= 0) {
    if (failure_.empty()) turn_into_clone(index, storage.contents);
  } else if (storage.external && op.hasTag(at::Tag::inplace_view)) {
    fail_here(full_name(op) + " changes the shape of a tensor from outside the step", "use the op that gives a view");
  } else if (storage.external && storage.strong.allocator() != nullptr && is_lifted(index)) {
    if (failure_.empty()) turn_into_clone(index, bytes_of(storage.strong).clone().storage());
  }
}

// torch.tensor(numbers): made below the dispatcher, then given to the step. What NumPy owns may be there before.
bool ProgramWriter::is_lifted(int index) {
  for (std::size_t i = 0; i < program_.ops.size(); ++i) {
    const StepProgram::Op& op = program_.ops[i];
    if (op.handle.operator_name().name != "aten::lift_fresh") continue;
    if (table_.values()[op.results.front().values.front()].storage != index) continue;
    table_.storage(index).producer = static_cast<int>(i);
    return true;
  }
  return false;
}

// A tensor that the host made within the step and that an op changes now: every run must start from what the host
// wrote. The op that allocated it becomes a copy of that.
void ProgramWriter::turn_into_clone(int index, const c10::Storage& contents) {
  StepProgram::Op& allocation = program_.ops[table_.storages()[index].producer];
  const int made = allocation.results.front().values.front();
  const at::Tensor constant = tensor_at(contents, table_.values()[made]);
  if (!constant.is_non_overlapping_and_dense()) {
    fail_here("a tensor with gaps is filled by the host", "make it contiguous");
    return;
  }
  static const c10::OperatorHandle clone = c10::Dispatcher::singleton().findSchemaOrThrow("aten::clone", "");
  const int source = table_.add(constant, table_.add_storage(constant, /*producer=*/-1), /*keep=*/true);
  const Slot copied{Slot::Kind::kValue, {}, {source}};
  for (Slot& argument : allocation.arguments) {  // of lift_fresh, the tensor itself
    if (argument.values == std::vector<int>{made}) argument = copied;
  }
  allocation.recorded_as = StepProgram::Call{allocation.handle, std::move(allocation.arguments)};
  allocation.copies_constant = true;
  allocation.handle = clone;
  allocation.arguments = {copied, Slot()};
  table_.make_internal(index);
}

// After the op ran. What it resized (an empty tensor given as `out`) is written at its new size.
void ProgramWriter::mark_written(StepProgram::Op& op, const std::vector<at::Tensor>& written) {
  if (!failure_.empty() && !tells_all()) return;
  const bool moves = op.handle.hasTag(at::Tag::inplace_view);
  for (const at::Tensor& tensor : written) {
    const int index = table_.find_storage(tensor);
    if (index < 0 && !tensor.has_storage()) return;  // sparse: an obstacle already
    if (index < 0) {
      fail_here(op.handle.schema().name() + " gives a tensor other memory", "copy_() into it");
      return;
    }
    ValueTable::Storage& storage = table_.storage(index);
    storage.bytes = tensor.storage().nbytes();
    if (op.on_host && !is_empty_like(op.handle) && storage.bytes > kMaxConstantBytes) storage.host = false;
    op.written.push_back(table_.add(tensor, index, storage.external));
  }
  if (moves || written.empty()) return;
  StepProgram::Call given{op.handle, op.arguments};
  bool resized = false;
  std::size_t next = 0;
  const auto& arguments = op.handle.schema().arguments();
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (!writes(arguments[i])) continue;
    for (int& value : op.arguments[i].values) {
      resized = resized || value != op.written[next];
      value = op.written[next++];
    }
  }
  if (resized) op.recorded_as = std::move(given);
}

int ProgramWriter::add_result(const at::Tensor& tensor, bool on_host) {
  if (!tensor.defined()) return -1;
  if (const char* kind = special_kind(tensor)) {
    fail_here(std::string("an op gives ") + kind, "use dense tensors");
    return -1;
  }
  const bool is_new = table_.find_storage(tensor) < 0;
  const int index = table_.add_storage(tensor, static_cast<int>(program_.ops.size()));
  if (on_host && is_new) table_.storage(index).host = true;
  if (is_new && tensor.use_count() > 1) table_.storage(index).kept_by_op = true;
  return table_.add(tensor, index, /*keep=*/false);  // a view of a parameter would keep autograd's graph alive
}

void ProgramWriter::finish(const std::vector<at::Tensor>& results) {
  if (!failure_.empty()) return;
  for (const at::Tensor& result : results) {
    const int index = table_.find_storage(result);
    if (index >= 0 && table_.storages()[index].host) table_.make_constant(index);
  }
  find_constants();
  find_versions();
  find_kept(results);
  for (const at::Tensor& result : results) program_.results.push_back(result.has_storage() ? table_.find(result) : -1);
  std::erase_if(program_.backward_passes, [this](const auto& pass) { return !makes_gradients_alone(program_, pass); });
}

// Only what constants are made of is the host's, and what it alone uses (sizes that a traced script computes). What was
// allocated and then written by a recorded op is not.
void ProgramWriter::find_constants() {
  std::vector<bool> needed;
  for (const ValueTable::Storage& storage : table_.storages()) needed.push_back(storage.contents || storage.host);
  const auto storage_of = [this](int value) { return table_.values()[value].storage; };
  for (std::size_t i = program_.ops.size(); i-- > 0;) {
    StepProgram::Op& op = program_.ops[i];
    if (!op.on_host) continue;
    bool makes_constant = false;
    for (const int value : op.written) makes_constant = makes_constant || needed[storage_of(value)];
    for_each_value(op.results, [&](int value) { makes_constant = makes_constant || needed[storage_of(value)]; });
    op.on_host = makes_constant;
    if (!makes_constant) continue;
    const auto need = [&](int value) { needed[storage_of(value)] = true; };
    for_each_value(op.arguments, need);
    if (op.recorded_as) for_each_value(op.recorded_as->arguments, need);  // the host code still calls that
  }
}

void ProgramWriter::find_versions() {
  std::vector<bool> found(table_.storages().size(), false);
  for (const ValueTable::Value& value : table_.values()) {
    if (!value.original.defined() || value.original.is_inference() || found[value.storage]) continue;
    found[value.storage] = true;
    uint32_t& version = table_.storage(value.storage).version;
    version = value.original._version() - version;
  }
  for (std::size_t s = 0; s < found.size(); ++s) {
    if (!found[s]) table_.storage(static_cast<int>(s)).version = 0;
  }
}

void ProgramWriter::find_kept(const std::vector<at::Tensor>& results) {
  const ResultReferences references(results);
  for (std::size_t s = 0; s < table_.storages().size(); ++s) {
    ValueTable::Storage& storage = table_.storage(static_cast<int>(s));
    if (storage.external) {
      const bool alone = table_.alone_refers_to(static_cast<int>(s));
      storage.input = inputs_.is_input(storage.strong);
      storage.local = !storage.contents && !storage.input && alone;
      storage.kept = storage.input && !alone;
    } else if (const auto alive = storage.weak->lock(); alive && !storage.kept_by_op) {
      storage.kept = !references.only_results(alive.get(), /*ours=*/1);
    }
  }
}

}  // namespace duet
