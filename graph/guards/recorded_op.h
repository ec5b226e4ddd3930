#pragma once

#include <string>
#include "graph/record/step_program.h"

// A recorded op as the host code knows it.

namespace duet {

// What the host code called: a replay may run something else for it.
inline const c10::OperatorHandle& called(const StepProgram::Op& op) {
  return op.recorded_as ? op.recorded_as->handle : op.handle;
}
inline const std::vector<StepProgram::Slot>& given(const StepProgram::Op& op) {
  return op.recorded_as ? op.recorded_as->arguments : op.arguments;
}

// Whether it computes 0-dim tensors on the host from such alone, and changes nothing.
bool is_of_single_numbers(const StepProgram::Op& op, const ValueTable& table);

// The argument that the result is, by the schema; -1 if none.
int argument_returned(const c10::FunctionSchema& schema, std::size_t result);

std::string text_of_number(const c10::IValue& value);

// Bits for floating point, so that NaN equals NaN and -0 does not equal 0.
bool same_number(const c10::IValue& recorded, const c10::IValue& now);

}  // namespace duet
