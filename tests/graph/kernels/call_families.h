#pragma once

#include <ostream>
#include <vector>
#include "tests/graph/kernels/kernel_cases.h"

namespace duet::testing {

// Calls of one kind, of drawn shapes and with numbers of some kind.
struct CallFamily {
  const char* name;
  int rounds;
  double taken;  // the share of its calls that duet's kernels take at least, where this CPU has some
  Calls (*make)(Random& random, int kind);
};

const std::vector<CallFamily>& call_families();

inline void PrintTo(const CallFamily& family, std::ostream* out) { *out << family.name; }

// Each op on rows once: sum, layer norm and its backward, softmax, its logarithm and that one's backward, loss and its
// backward.
Calls row_calls(int64_t rows, int64_t width, int kind, Random& random);

// Of each dimension of an image.
struct ConvolutionNumbers {
  std::vector<int64_t> stride, padding, dilation;
};
// A convolution of x and its backward: a gradient of ones, and undefined what is not wanted.
Calls convolution_calls(const std::vector<at::Tensor>& x_weight_bias, const ConvolutionNumbers& numbers, bool wants_x);

// Attention over [batch, head, row, column] and its backward.
Calls attention_calls(const std::vector<int64_t>& sizes, bool causal, int kind, Random& random);

}  // namespace duet::testing
