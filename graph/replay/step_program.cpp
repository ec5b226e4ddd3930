#include "graph/replay/step_program.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"

#include <cstring>
#include <functional>
#include <sstream>

namespace duet {

void StepProgram::run(std::size_t segment) {
  const at::NoGradGuard no_grad;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (segment == 0) use_exact_ = kernel_settings() == settings_;
  const std::size_t begin = segment == 0 ? 0 : segment_ends_[segment - 1];
  const bool observed = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
  for (std::size_t i = begin; i < segment_ends_[segment]; ++i) {
    observed ? execute_observed(instructions_[i]) : execute(instructions_[i]);
  }
}

// A profiler sees what an eager step would show it; redispatching passes the dispatcher's own spans by.
void StepProgram::execute_observed(const Instruction& instruction) {
  at::RecordFunction span(at::RecordScope::FUNCTION);
  if (span.needsInputs()) {
    span.before(std::cref(instruction.op.schema()), &instruction.arguments);
  } else if (span.isActive()) {
    span.before(std::cref(instruction.op.schema()));
  }
  execute(instruction);
}

void StepProgram::execute(const Instruction& instruction) {
  if (use_exact_ && instruction.exact != nullptr) {
    instruction.exact->run();
  } else {
    run_op(instruction);
  }
  for (const int storage : instruction.releases) {
    storages_[storage].unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, tape_.storages[storage].device));
  }
}

void StepProgram::run_op(const Instruction& instruction) {
  at::GradMode::set_enabled(instruction.grad_mode);
  stack_.assign(instruction.arguments.begin(), instruction.arguments.end());
  instruction.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  if (instruction.kind == Kind::kRebind) rebind(instruction);
}

namespace {

const at::Tensor& flat_result(const torch::jit::Stack& stack, int position, at::Tensor& holder) {
  for (const c10::IValue& value : stack) {
    if (value.isTensor()) {
      if (position-- == 0) return value.toTensor();
    } else if (value.isTensorList()) {
      const auto list = value.toListRef();
      if (position < static_cast<int>(list.size())) {
        holder = list[position].toTensor();
        return holder;
      }
      position -= static_cast<int>(list.size());
    }
  }
  return holder;
}

std::string shape_text(const Tape::Value& value) {
  std::ostringstream out;
  out << c10::toString(value.dtype) << "[";
  for (std::size_t i = 0; i < value.sizes.size(); ++i) out << (i == 0 ? "" : ", ") << value.sizes[i];
  out << "]";
  return out.str();
}

}  // namespace

// The memory of each fresh result becomes that of the recorded storage; every tensor over it follows.
void StepProgram::rebind(const Instruction& instruction) {
  at::Tensor holder;
  for (const Rebind& target : instruction.rebinds) {
    const at::Tensor& result = flat_result(stack_, target.result, holder);
    c10::StorageImpl* to = storages_[target.storage].unsafeGetStorageImpl();
    const Tape::Value& recorded = tape_.values[target.value];
    const bool same = result.defined() && result.storage_offset() == recorded.offset && result.sizes() == recorded.sizes &&
                      result.strides() == recorded.strides && result.storage().nbytes() >= to->nbytes();
    if (!same) {
      throw GraphError(c10::str("[StepProgram] ", instruction.op.schema().name(), " gave a result of sizes ",
                                result.defined() ? result.sizes() : at::IntArrayRef(), ", expected ", shape_text(recorded),
                                " as when it was recorded; its output depends on values. Set graph.fallback to eager"));
    }
    c10::StorageImpl* from = result.storage().unsafeGetStorageImpl();
    to->set_data_ptr_noswap(from->set_data_ptr(c10::DataPtr(nullptr, from->device())));
  }
}

at::Tensor StepProgram::tensor(const at::Tensor& recorded) const {
  const int value = tape_.find(recorded);
  return value < 0 ? recorded : tensors_[value];
}

namespace {

void write_slot(std::ostream& out, const Tape::Slot& slot, const std::vector<std::string>& names) {
  const auto name = [&](int value) { return value < 0 ? std::string("none") : names[value]; };
  switch (slot.kind) {
    case Tape::Slot::Kind::kConstant: out << slot.constant; break;
    case Tape::Slot::Kind::kValue: out << name(slot.values.front()); break;
    default:
      out << "[";
      for (std::size_t i = 0; i < slot.values.size(); ++i) out << (i == 0 ? "" : ", ") << name(slot.values[i]);
      out << "]";
  }
}

}  // namespace

std::string StepProgram::text(const NamedTensors& names) const {
  std::vector<std::string> value_names(tape_.values.size());
  for (std::size_t i = 0; i < value_names.size(); ++i) value_names[i] = "%" + std::to_string(i);
  for (const auto& [name, tensor] : names) {
    const int value = tape_.find(tensor);
    if (value >= 0) value_names[value] = "%" + name;
  }
  std::ostringstream out;
  std::size_t segment = 0;
  for (std::size_t i = 0; i < instructions_.size(); ++i) {
    while (segment < segment_ends_.size() && segment_ends_[segment] <= i) {
      out << "host point\n";
      ++segment;
    }
    const Instruction& instruction = instructions_[i];
    const Tape::Op& op = tape_.ops[instruction.source];
    for (std::size_t r = 0; r < op.results.size(); ++r) {
      if (r > 0) out << ", ";
      write_slot(out, op.results[r], value_names);
      if (op.results[r].kind == Tape::Slot::Kind::kValue && op.results[r].values.front() >= 0) {
        out << ": " << shape_text(tape_.values[op.results[r].values.front()]);
      }
    }
    out << (op.results.empty() ? "" : " = ") << instruction.op.operator_name() << "(";
    for (std::size_t a = 0; a < op.arguments.size(); ++a) {
      if (a > 0) out << ", ";
      write_slot(out, op.arguments[a], value_names);
    }
    const char* how = instruction.kind == Kind::kOut ? "out" : instruction.kind == Kind::kRebind ? "rebind" : "inplace";
    out << ")  # " << how;
    if (instruction.exact != nullptr) out << ", " << instruction.exact->name();
    out << "\n";
  }
  return out.str();
}

}  // namespace duet
