#include "graph/replay/cpu_program.h"
#include <algorithm>
#include <functional>
#include <map>
#include <sstream>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "core/detail/step_executor.h"
#include "graph/guards/shadow_storage.h"
#include "graph/record/step_results.h"

namespace duet {

namespace {

using Slot = StepProgram::Slot;

std::string slot_text(const Slot& slot, const std::vector<std::string>& names) {
  if (slot.kind == Slot::Kind::kConstant) return c10::str(slot.constant);
  std::vector<std::string> values;
  for (const int value : slot.values) values.push_back(value < 0 ? "none" : names[value]);
  return slot.kind == Slot::Kind::kValue ? values.front() : "[" + c10::Join(", ", values) + "]";
}

std::vector<std::string> value_names(const ValueTable& table, const std::vector<at::Tensor>& tensors,
                                     const NamedTensors& names) {
  std::vector<std::string> result(table.values().size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = "%" + std::to_string(i);
  for (const auto& [name, tensor] : names) {
    const at::Tensor& wanted = tensor;
    const auto own = std::find_if(tensors.begin(), tensors.end(),
                                  [&wanted](const at::Tensor& other) { return other.is_same(wanted); });
    const auto value = own == tensors.end() ? table.find(tensor) : own - tensors.begin();
    if (value >= 0) result[value] = "%" + name;
  }
  return result;
}

constexpr const char* kInChain = ", in a chain";

constexpr const char* kKinds[] = {"inplace", "out", "rebind", "copy"};  // by Instruction::Kind

// "Float[8, 16]".
std::string shape_text(const ValueTable::Value& value) {
  return c10::str(c10::toString(value.dtype), at::IntArrayRef(value.sizes));
}

}  // namespace

ReplayTensors CpuProgram::compile(const std::shared_ptr<const StepProgram>& recording, const StepResult& recorded,
                                  const NamedTensors& parameters) {
  build(recording, results_of(recorded, parameters));
  ReplayTensors tensors{mapped(recorded, [this](const at::Tensor& result) { return tensor(result); }), {}};
  for (const auto& parameter : parameters) tensors.gradients.push_back(tensor(parameter.second.grad()));
  return tensors;
}

void CpuProgram::run(std::size_t segment) {
  const ThreadSettingsGuard settings;
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  if (segment == 0) {
    use_kernels_ = kernel_settings() == parts_.settings;
    if (known_switched_off_ != passes_switched_off()) drop_switched_off();
  }
  const std::size_t begin = segment == 0 ? 0 : parts_.segment_ends[segment - 1];
  const bool observed = at::getStepCallbacksUnlessEmpty(at::RecordScope::FUNCTION).has_value();
  std::size_t i = begin;
  try {
    for (; i < parts_.segment_ends[segment]; ++i) {
      observed ? execute_observed(parts_.instructions[i]) : execute(parts_.instructions[i]);
    }
  } catch (c10::Error& error) {
    error.add_context(kReplayedOp + parts_.instructions[i].op.schema().name());
    throw;
  }
}

// A profiler sees what an eager step would show it; redispatching passes the dispatcher's own spans by.
void CpuProgram::execute_observed(const Instruction& instruction) {
  at::RecordFunction span(at::RecordScope::FUNCTION);
  if (span.needsInputs()) {
    span.before(std::cref(instruction.op.schema()), &instruction.arguments);
  } else if (span.isActive()) {
    span.before(std::cref(instruction.op.schema()));
  }
  execute(instruction);
}

void CpuProgram::execute(const Instruction& instruction) {
  if (use_kernels_ && instruction.kernel.run && instruction.kernel_number < kernels_in_use_) {
    instruction.kernel.run();
  } else {
    run_op(instruction);
  }
  for (const int storage : instruction.releases) {
    const c10::Device device = parts_.recording->table.storages()[storage].device;
    parts_.storages[storage].unsafeGetStorageImpl()->set_data_ptr_noswap(c10::DataPtr(nullptr, device));
  }
}

void CpuProgram::run_op(const Instruction& instruction) {
  set_thread_settings(instruction.settings);
  if (instruction.unboxed != nullptr) return instruction.unboxed(instruction.arguments);
  stack_.assign(instruction.arguments.begin(), instruction.arguments.end());
  instruction.op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack_);
  if (instruction.kind == Instruction::Kind::kRebind) rebind(instruction);
  if (instruction.kind == Instruction::Kind::kCopy) copy(instruction);
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

}  // namespace

// Calls take(target, result, references) for every fresh result, which must look as it was recorded; `references` are
// those that this function holds.
template <class Take>
void CpuProgram::for_each_result(const Instruction& instruction, Take take) {
  at::Tensor holder;
  for (const Instruction::Rebind& target : instruction.rebinds) {
    const at::Tensor& result = flat_result(stack_, target.result, holder);
    const c10::StorageImpl* to = parts_.storages[target.storage].unsafeGetStorageImpl();
    const ValueTable::Value& recorded = parts_.recording->table.values()[target.value];
    const bool same = result.defined() && result.storage_offset() == recorded.offset &&
                      result.sizes() == recorded.sizes && result.strides() == recorded.strides &&
                      result.storage().nbytes() >= to->nbytes();
    if (!same) {
      throw GraphError(c10::str("[CpuProgram] ", instruction.op.schema().name(), " gave a result of sizes ",
                                result.defined() ? result.sizes() : at::IntArrayRef(), ", expected ",
                                shape_text(recorded), " as when it was recorded; its output depends on values. Set ",
                                "graph.fallback to eager"));
    }
    take(target, result, result.is_same(holder) ? 2 : 1);
  }
}

// The memory of each fresh result becomes that of the recorded storage; every tensor over it follows.
void CpuProgram::rebind(const Instruction& instruction) {
  for_each_result(instruction, [this](const auto& target, const at::Tensor& result, std::size_t references) {
    parts_.storages[target.storage].unsafeGetStorageImpl()->set_data_ptr_noswap(take_memory(result, references));
  });
}

void CpuProgram::copy(const Instruction& instruction) {
  for_each_result(instruction, [this](const auto& target, const at::Tensor& result, std::size_t) {
    parts_.tensors[target.value].copy_(result);
  });
}

at::Tensor CpuProgram::tensor(const at::Tensor& recorded) const {
  const int value = parts_.recording->table.find(recorded);
  return value < 0 ? recorded : parts_.tensors[value];
}

void CpuProgram::move_tensors(const c10::StorageImpl* from, const c10::Storage& to) {
  for (c10::Storage& storage : parts_.storages) {
    if (storage.unsafeGetStorageImpl() == from) storage = to;
  }
  for (const at::Tensor& tensor : parts_.tensors) {
    if (tensor.defined() && tensor.storage().unsafeGetStorageImpl() == from)
      tensor.unsafeGetTensorImpl()->set_storage_keep_dtype(to);
  }
}

void CpuProgram::drop_switched_off() {
  known_switched_off_ = passes_switched_off();
  for (Instruction& instruction : parts_.instructions) {
    const BitexactKernel& kernel = instruction.kernel;
    if (kernel.run && (kernel.in_chain || kernel.pass->is_off)) instruction.kernel = {};
  }
}

const Instruction* CpuProgram::first_of_kernel(int64_t kernel) const {
  for (const Instruction& instruction : parts_.instructions) {
    if (instruction.kernel.run && instruction.kernel_number == kernel) return &instruction;
  }
  return nullptr;
}

const KernelPass* CpuProgram::kernel_pass(int64_t kernel) const {
  const Instruction* instruction = first_of_kernel(kernel);
  return instruction != nullptr ? instruction->kernel.pass : nullptr;
}

std::string CpuProgram::kernel_text(int64_t kernel) const {
  const Instruction* instruction = first_of_kernel(kernel);
  if (instruction == nullptr) return {};
  std::vector<std::string> shapes;
  for_each_value(parts_.recording->ops[instruction->source].arguments,
                 [&](int value) { shapes.push_back(shape_text(parts_.recording->table.values()[value])); });
  std::string text =
      c10::str(instruction->kernel.name, " in ", instruction->op.operator_name(), "(", c10::Join(", ", shapes), ")");
  if (!instruction->kernel.in_chain) return text;
  for (const Instruction& other : parts_.instructions) {
    if (&other != instruction && other.kernel.run && other.kernel_number == kernel)
      text += c10::str(kInChain, " with ", other.op.operator_name());
  }
  return text;
}

StepExplanation::Ops CpuProgram::ops() const {
  std::map<std::string, int64_t> kernels;
  for (const Instruction& instruction : parts_.instructions) {
    if (!instruction.kernel.run) continue;
    ++kernels[instruction.kernel.name];
    if (instruction.kernel.in_chain) ++kernels["in a chain"];
  }
  return {static_cast<int64_t>(parts_.recording->ops.size()),
          parts_.needed_ops,
          static_cast<int64_t>(parts_.instructions.size()),
          {kernels.begin(), kernels.end()}};
}

std::string CpuProgram::text(const NamedTensors& names) const {
  if (!parts_.recording) return {};
  const ValueTable& table = parts_.recording->table;
  const std::vector<std::string> value_text = value_names(table, parts_.tensors, names);
  std::ostringstream out;
  std::size_t segment = 0;
  for (std::size_t i = 0; i < parts_.instructions.size(); ++i) {
    for (; segment < parts_.segment_ends.size() && parts_.segment_ends[segment] <= i; ++segment) {
      out << "split point\n";
    }
    const Instruction& instruction = parts_.instructions[i];
    const StepProgram::Op& op = parts_.recording->ops[instruction.source];
    std::vector<std::string> results, arguments;
    for (const Slot& slot : op.results) {
      results.push_back(slot_text(slot, value_text));
      const bool is_tensor = slot.kind == Slot::Kind::kValue && slot.values.front() >= 0;
      if (is_tensor) results.back() += ": " + shape_text(table.values()[slot.values.front()]);
    }
    for (const Slot& slot : op.arguments) arguments.push_back(slot_text(slot, value_text));
    out << c10::Join(", ", results) << (results.empty() ? "" : " = ") << instruction.op.operator_name() << "("
        << c10::Join(", ", arguments) << ")  # " << kKinds[static_cast<int>(instruction.kind)];
    if (instruction.kernel.run) {
      out << ", " << instruction.kernel.name << (instruction.kernel.in_chain ? kInChain : "");
    } else if (instruction.unboxed == nullptr) {
      out << ", boxed";
    }
    out << "\n";
  }
  return out.str();
}

}  // namespace duet
