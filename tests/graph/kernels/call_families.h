#pragma once

#include <ostream>
#include <vector>
#include <ATen/ops/full.h>
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

// A result in which something else lies yet.
inline at::Tensor target(at::IntArrayRef sizes) { return at::full(sizes, 7, at::kFloat); }

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

// Of oneDNN's layers, in layer_families.cpp.
Calls some_convolution(Random& random, int kind);
Calls some_lstm(Random& random, int kind);

struct LstmSizes {
  int64_t steps, batch, inputs, hidden;
  bool reverse = false, has_biases = true;
};
// A layer and its backward. `gradients`: of the loss by [steps, batch, hidden] and the last states; undefined: none.
Calls lstm_calls(const LstmSizes& sizes, const std::vector<at::Tensor>& x_weights_biases_states,
                 const std::vector<at::Tensor>& gradients);
// The same of floats of a kind, multiplied.
Calls lstm_calls(const LstmSizes& sizes, int kind, float scale, Random& random);

// Attention over [batch, head, row, column] and its backward.
Calls attention_calls(const std::vector<int64_t>& sizes, bool causal, int kind, Random& random);

}  // namespace duet::testing
