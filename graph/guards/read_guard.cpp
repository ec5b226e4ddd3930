#include "graph/guards/read_guard.h"
#include <exception>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/StringUtil.h>
#include "base/detail/op_rules.h"
#include "base/detail/text.h"
#include "graph/guards/recorded_ops.h"
#include "graph/record/host_reads.h"
#include "graph/replay/cpu_program.h"

namespace duet {

ReadGuard::ReadGuard(const StepProgram& recording, const MicroBatches& inputs) {
  ReadSlices slices = slices_of_reads(recording);
  ValueTable& table = slices.program.table;
  for (std::size_t b = 0; b < inputs.batches.size(); ++b) {
    const NamedTensors& items = inputs.batches[b].items();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const int storage = table.find_storage(items[i].second);
      if (storage >= 0 && slices.storages[storage]) used_.emplace_back(b, i);
    }
  }
  // The recording's own are those of the step that ran last, whose host code may run once more.
  const MicroBatches part = part_of(inputs);
  inputs_ = std::make_unique<StaticInputs>(part);
  inputs_->find_in(table, part);
  inputs_->take_place_in(table);
  const auto program = std::make_shared<const StepProgram>(std::move(slices.program));
  program_ = std::make_unique<CpuProgram>();
  program_->build(program, {});
  const auto tensor = [this, &program](int value) {
    if (value < 0) return at::Tensor();
    const ValueTable::Value& wanted = program->table.values()[value];
    return wanted.original.defined() ? wanted.original : tensor_at(program_->memory_of(wanted.storage), wanted);
  };
  const at::NoGradGuard no_grad;
  for (const StepProgram::Op& op : slices.reads) {
    Read read{op.handle, {}, op.results.front().constant, op.place};
    for (const StepProgram::Slot& slot : op.arguments) read.arguments.push_back(slot_value(slot, tensor));
    reads_.push_back(std::move(read));
  }
}

ReadGuard::~ReadGuard() = default;

MicroBatches ReadGuard::part_of(const MicroBatches& micro_batches) const {
  MicroBatches part;
  part.batches.resize(micro_batches.batches.size());
  for (const auto& [batch, item] : used_) {
    const auto& [name, tensor] = micro_batches.batches[batch].items()[item];
    part.batches[batch].set(name, tensor);
  }
  return part;
}

bool ReadGuard::holds(const MicroBatches& micro_batches) {
  inputs_->fill(part_of(micro_batches));
  for (std::size_t read = 0; read < reads_.size(); ++read) {
    if (!run(read)) return false;
  }
  return true;
}

bool ReadGuard::holds(std::size_t read, const MicroBatches& micro_batches) {
  inputs_->fill(part_of(micro_batches));
  return run(read);
}

// An op that throws does so again where the step itself runs it.
bool ReadGuard::run(std::size_t read) {
  changed_ = read;
  try {
    program_->run(read);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    torch::jit::Stack stack = reads_[read].arguments;
    reads_[read].op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &stack);
    return same_number(reads_[read].recorded, stack.front());
  } catch (const std::exception&) {
    return false;
  }
}

std::string ReadGuard::values() const {
  std::vector<std::string> texts;
  for (const Read& read : reads_) {
    const c10::IValue& value = read.recorded;
    texts.push_back(value.isBool() ? value.toBool() ? "true" : "false" : c10::str(value));
  }
  return join_first(std::move(texts));
}

std::string ReadGuard::changed() const {
  return full_name(reads_[changed_].op) + ", " + place_after(reads_[changed_].place) + ",";
}

int64_t ReadGuard::bytes() const { return inputs_->bytes() + program_->bytes(); }

}  // namespace duet
