#pragma once

#include <functional>
#include <vector>
#include "graph/kernels/bitexact_kernel.h"

// Kernels that take one call each, and how they are tried.

namespace duet {

// Computes the call's results; false: ATen is to, since one is NaN, or a zero whose sign is in doubt.
using CallKernel = std::function<bool()>;

struct CallKernelMaker {
  const char* op;
  const char* overload;
  const char* name;                        // for CpuProgram::text
  CallKernel (*make)(const OpCall& call);  // empty: the call does not fit
  int classes = -1;                        // the argument whose columns are what the call's integers count
  int dims_of_rows = 0;      // the first rows of tensors with so many dimensions tell for all; 0: they do not
  bool elementwise = false;  // BitexactKernel::elementwise
  RowByRow (*by_rows)(const OpCall& call) = nullptr;
  OpCall (*tried)(const OpCall& call) = nullptr;  // a smaller call that tells for this one; null: see dims_of_rows
  bool must_be_faster = false;                    // than ATen's, which is timed first
};

// Gives each call that has no kernel yet the one of the table that fits it and is bit-exact; this is tried once per
// kind of call.
void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels);

// Whether the kernel gives ATen's bits on numbers of all kinds, in tensors like the call's. NaN that it leaves to ATen
// do not count.
bool is_bitexact(const CallKernelMaker& maker, const OpCall& like);

}  // namespace duet
