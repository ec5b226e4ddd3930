#pragma once

#include <functional>
#include <string>
#include <vector>
#include "graph/kernels/bitexact_kernel.h"

// How kernels are tried: on calls like a program's, in memory of their own.

namespace duet {

// Computes the calls' results; false: ATen is to, since one is NaN, or a zero whose sign is in doubt.
using CallKernel = std::function<bool()>;
using MakeCallKernel = std::function<CallKernel(const std::vector<OpCall>& calls)>;

struct TrialRules {
  int classes = -1;                    // the argument whose columns are what the calls' integers count
  int dims_of_rows = 0;                // the first rows of tensors with so many dimensions tell for all; 0: they do not
  bool elementwise = false;            // BitexactKernel::elementwise
  std::vector<float> scales = {1.0F};  // by which plain numbers are multiplied; the last is usual
};

// Whether a kernel gives ATen's bits on numbers of all kinds, in tensors like the calls'. NaN that it leaves to ATen do
// not count.
bool is_bitexact(const MakeCallKernel& make, const std::vector<OpCall>& calls, const TrialRules& rules);
// On plain numbers.
bool is_faster(const MakeCallKernel& make, const std::vector<OpCall>& calls, const TrialRules& rules);

// All that the order of ATen's arithmetic may depend on.
std::string kind_of(const std::vector<OpCall>& calls);

}  // namespace duet
