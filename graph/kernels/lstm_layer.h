#pragma once

#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/lstm_kernels.h"

namespace duet {

// A layer of an LSTM that trains, in one direction: both of its calls.
//   mkldnn_rnn_layer(x, input_weights, hidden_weights, input_bias, hidden_bias, hidden, cells, reverse, batch_sizes,
//                    mode, hidden_size, layers, has_biases, bidirectional, batch_first, train)
//     -> (out, last_hidden, last_cells, workspace)
//   mkldnn_rnn_layer_backward(the first seven, out, last_hidden, last_cells, grad_out, grad_hidden, grad_cells,
//                             reverse, mode, hidden_size, layers, has_biases, train, bidirectional, batch_sizes,
//                             batch_first, workspace)
//     -> (grad_x, grad_input_weights, grad_hidden_weights, grad_bias, grad_bias, grad_hidden, grad_cells)
struct LstmCalls {
  static constexpr const char *kForward = "aten::mkldnn_rnn_layer", *kBackward = "aten::mkldnn_rnn_layer_backward";
  static constexpr std::size_t kInputs = 7, kFirstGrad = 10, kWorkspace = 22;  // of arguments

  OpCall forward, backward;
  LstmOrder order{};

  at::Tensor input(std::size_t i) const { return forward.floats(i); }
  at::Tensor grad(std::size_t i) const { return backward.floats(kFirstGrad + i); }
  bool is_reverse() const { return forward.arguments[7].toBool(); }
  bool has_biases() const { return forward.arguments[12].toBool(); }
  int64_t steps() const { return input(0).size(0); }
  int64_t batch() const { return input(0).size(1); }
  int64_t inputs() const { return input(0).size(2); }
  int64_t hidden() const { return input(2).size(1); }
  int64_t rows() const { return steps() * batch(); }
  int64_t gates() const { return 4 * hidden(); }

  // Whether they are those of one layer, and of shapes that duet's kernels take.
  bool fit() const;
  // With a workspace of duet's own, which the backward writes over. False: there is a NaN.
  bool run_forward() const;
  bool run_backward() const;
};

}  // namespace duet
