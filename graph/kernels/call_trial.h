#pragma once

#include <functional>
#include <vector>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include "graph/kernels/bitexact_kernel.h"

namespace duet {

// Computes the call's results; false: one is NaN, and ATen is to choose its bits.
using CallKernel = std::function<bool()>;

struct CallKernelMaker {
  const char* op;
  const char* overload;
  const char* name;                        // for CpuProgram::text
  CallKernel (*make)(const OpCall& call);  // empty: the call does not fit
  int classes = -1;                        // the argument whose columns are what the call's integers count
  bool by_element = false;                 // the first rows of large tensors may be tried for all
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

}  // namespace duet
