#include "graph/replay/program_text.h"
#include <sstream>

namespace duet {

namespace {

using Slot = StepProgram::Slot;

// Writes item(i) for each i, with commas in between.
template <class Item>
void write_list(std::ostream& out, std::size_t count, Item item) {
  for (std::size_t i = 0; i < count; ++i) {
    if (i > 0) out << ", ";
    item(i);
  }
}

void write_slot(std::ostream& out, const Slot& slot, const std::vector<std::string>& names) {
  const auto name = [&](int value) { return value < 0 ? std::string("none") : names[value]; };
  switch (slot.kind) {
    case Slot::Kind::kConstant: out << slot.constant; break;
    case Slot::Kind::kValue: out << name(slot.values.front()); break;
    default:
      out << "[";
      write_list(out, slot.values.size(), [&](std::size_t i) { out << name(slot.values[i]); });
      out << "]";
  }
}

std::vector<std::string> value_names(const ValueTable& table, const NamedTensors& names) {
  std::vector<std::string> result(table.values().size());
  for (std::size_t i = 0; i < result.size(); ++i) result[i] = "%" + std::to_string(i);
  for (const auto& [name, tensor] : names) {
    const int value = table.find(tensor);
    if (value >= 0) result[value] = "%" + name;
  }
  return result;
}

const char* kind_text(Instruction::Kind kind) {
  return kind == Instruction::Kind::kOut ? "out" : kind == Instruction::Kind::kRebind ? "rebind" : "inplace";
}

}  // namespace

std::string shape_text(const ValueTable::Value& value) {
  std::ostringstream out;
  out << c10::toString(value.dtype) << "[";
  write_list(out, value.sizes.size(), [&](std::size_t i) { out << value.sizes[i]; });
  out << "]";
  return out.str();
}

std::string program_text(const CpuProgramParts& program, const NamedTensors& names) {
  const ValueTable& table = program.recording.table;
  const std::vector<std::string> value_text = value_names(table, names);
  std::ostringstream out;
  std::size_t segment = 0;
  for (std::size_t i = 0; i < program.instructions.size(); ++i) {
    for (; segment < program.segment_ends.size() && program.segment_ends[segment] <= i; ++segment) {
      out << "split point\n";
    }
    const Instruction& instruction = program.instructions[i];
    const StepProgram::Op& op = program.recording.ops[instruction.source];
    write_list(out, op.results.size(), [&](std::size_t r) {
      write_slot(out, op.results[r], value_text);
      const bool is_tensor = op.results[r].kind == Slot::Kind::kValue && op.results[r].values.front() >= 0;
      if (is_tensor) out << ": " << shape_text(table.values()[op.results[r].values.front()]);
    });
    out << (op.results.empty() ? "" : " = ") << instruction.op.operator_name() << "(";
    write_list(out, op.arguments.size(), [&](std::size_t a) { write_slot(out, op.arguments[a], value_text); });
    out << ")  # " << kind_text(instruction.kind);
    if (instruction.kernel.run) out << ", " << instruction.kernel.name;
    out << "\n";
  }
  return out.str();
}

}  // namespace duet
