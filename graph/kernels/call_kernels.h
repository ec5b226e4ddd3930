#pragma once

#include <vector>
#include "graph/kernels/call_trial.h"

namespace duet {

// Gives each call that has no kernel yet the one of the table that fits it and is bit-exact; this is tried once per
// kind of call.
void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels);

}  // namespace duet
