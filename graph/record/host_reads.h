#pragma once

#include <cstdint>
#include <optional>
#include <vector>
#include "graph/record/obstacle.h"
#include "graph/record/step_program.h"

// Values that the host code of a step reads back (item(), bool(tensor), at::equal()). One that depends on nothing that
// the step has changed before can be computed without the step, and tells before a replay whether the host code would
// do what was recorded.

namespace duet {

// Whether this holds for a value of these tensors that the step is about to read, `program` being what it has done so
// far, and it costs little beside the step. `bytes_at_hand`: of the tensors that it uses in any case.
bool can_be_read_before(const StepProgram& program, const std::vector<at::Tensor>& read, int64_t bytes_at_hand);

// What computes the values of a recording's reads, alone and in its order.
struct ReadSlices {
  StepProgram program;                 // split before each read; what is read is kept
  std::vector<StepProgram::Op> reads;  // over the program's values; each result is the recorded value
  std::vector<bool> storages;          // that they use
};
ReadSlices slices_of_reads(const StepProgram& recording);

// Why the recording cannot be replayed after all: a value is computed from a tensor that is another one from step to
// step, of which a guard would read the recorded one. None if it can.
std::optional<Obstacle> refused_read(const StepProgram& recording);

}  // namespace duet
