#include "graph/guards/recorded_op.h"
#include <cstring>
#include <sstream>
#include "base/detail/op_rules.h"

namespace duet {

bool is_of_single_numbers(const StepProgram::Op& op, const ValueTable& table) {
  bool single = !op.random && op.written.empty() && hidden_writes(op.handle).empty() && !op.results.empty();
  bool any = false;
  const auto look = [&](int value) {
    any = true;
    single = single && table.values()[value].sizes.empty() && table.storage_of(value).device.is_cpu();
  };
  for (const StepProgram::Slot& slot : op.arguments) {
    single =
        single && (slot.kind == StepProgram::Slot::Kind::kConstant || slot.kind == StepProgram::Slot::Kind::kValue);
  }
  for_each_value(op.arguments, look);
  for_each_value(op.results, look);
  return single && any;
}

int argument_returned(const c10::FunctionSchema& schema, std::size_t result) {
  const auto* alias = schema.returns()[result].alias_info();
  if (alias == nullptr || !alias->isWrite()) return -1;
  for (std::size_t i = 0; i < schema.arguments().size(); ++i) {
    const auto* argument = schema.arguments()[i].alias_info();
    if (argument != nullptr && argument->isWrite() && argument->beforeSet() == alias->beforeSet()) {
      return static_cast<int>(i);
    }
  }
  return -1;
}

std::string text_of_number(const c10::IValue& value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

bool same_number(const c10::IValue& recorded, const c10::IValue& now) {
  if (recorded.isDouble() && now.isDouble()) {
    const double a = recorded.toDouble();
    const double b = now.toDouble();
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (recorded.isComplexDouble() && now.isComplexDouble()) {
    const auto a = recorded.toComplexDouble();
    const auto b = now.toComplexDouble();
    return std::memcmp(&a, &b, sizeof a) == 0;
  }
  if (recorded.isDoubleList() && now.isDoubleList()) {
    const auto a = recorded.toDoubleVector();
    const auto b = now.toDoubleVector();
    return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(double)) == 0);
  }
  if (recorded.isTensor() || now.isTensor()) return recorded.isTensor() && now.isTensor();  // both undefined
  return recorded == now;
}

}  // namespace duet
