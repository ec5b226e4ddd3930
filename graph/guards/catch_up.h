#pragma once

#include <functional>
#include <vector>
#include "graph/record/step_program.h"

namespace duet {

// Runs the first `end` ops of a recording one by one. `memory`: by storage, what each is to lie in; shadows among them
// are filled.
void run_recorded(const StepProgram& recording, std::size_t end, const std::vector<c10::Storage>& memory);

// Runs those up to the first split point. `ran(n)`: called after the n-th.
void run_to_first_split(const StepProgram& recording, const std::vector<c10::Storage>& memory,
                        const std::function<void(std::size_t)>& ran);

}  // namespace duet
