#pragma once

#include <functional>
#include <vector>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include "graph/kernels/bitexact_kernel.h"

// Kernels that take over single calls, by a table: what each fits, and one trial for all.

namespace duet {

// Computes the call's results; false: one is NaN, and ATen is to choose its bits.
using CallKernel = std::function<bool()>;

struct CallKernelMaker {
  const char* op;
  const char* overload;
  const char* name;                        // for CpuProgram::text
  CallKernel (*make)(const OpCall& call);  // empty: the call does not fit
  int classes = -1;                        // the argument whose columns are what the call's integers count
};

// A call as ATen computes it.
struct AtenCall {
  c10::OperatorHandle op;
  std::vector<c10::IValue> arguments;
  std::vector<at::Tensor> results;
  // Into `results`, if it gives them and does not write them.
  void run() const;
};

// Whether the kernel gives ATen's bits on numbers of all kinds, in tensors like the call's. NaN that it leaves to ATen
// do not count.
bool is_bitexact(const CallKernelMaker& maker, const OpCall& like);

// Gives each call that has no kernel yet the one that fits it and is bit-exact; this is tried once per kind of call.
void find_call_kernels(const std::vector<CallKernelMaker>& makers, const std::vector<OpCall>& calls,
                       BitexactKernels& kernels);

}  // namespace duet
