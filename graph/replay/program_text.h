#pragma once

#include <string>
#include "graph/replay/cpu_program.h"

namespace duet {

// A line for each instruction and each split point; `names` are tensors seen while recording.
std::string program_text(const CpuProgramParts& program, const NamedTensors& names);

// "Float[8, 16]".
std::string shape_text(const ValueTable::Value& value);

}  // namespace duet
