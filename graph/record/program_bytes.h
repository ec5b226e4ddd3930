#pragma once

#include <cstdint>
#include "graph/record/step_program.h"

namespace duet {

// Of the heap, what a recording takes with its check and what replays it on a CPU: its ops, values and their tensors.
// The memory that they lie in is not in it.
int64_t heap_bytes_of(const StepProgram& program);

}  // namespace duet
