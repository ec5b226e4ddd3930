#pragma once

#include <vector>
#include "graph/kernels/trial_calls.h"

// Kernels that take one call each.

namespace duet {

struct CallKernelMaker {
  const char* op;
  const char* overload;
  const char* name;                        // for CpuProgram::text
  CallKernel (*make)(const OpCall& call);  // empty: the call does not fit
  TrialRules rules{};
  RowByRow (*by_rows)(const OpCall& call) = nullptr;
  OpCall (*tried)(const OpCall& call) = nullptr;  // a smaller call that tells for this one; null: see rules
  bool must_be_faster = false;                    // than ATen's, which is timed first
};

// Gives each call that has no kernel yet the one of the table that fits it and is bit-exact; this is tried once per
// kind of call.
void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels);

bool is_bitexact(const CallKernelMaker& maker, const OpCall& like);

}  // namespace duet
