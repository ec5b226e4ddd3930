#include "graph/kernels/instruction_sets.h"

// Another kind of CPU.

namespace duet {

bool has_avx512() { return false; }
bool has_avx2() { return false; }

}  // namespace duet
