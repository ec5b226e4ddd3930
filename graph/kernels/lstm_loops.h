#pragma once

#include "graph/kernels/lstm_cells.h"
#include "graph/kernels/lstm_products.h"
#include "graph/kernels/transpose_loops.h"

// An LSTM's steps and their gradients, over the vectors of avx2_simd.h.

namespace duet {

namespace {

inline LstmRow row_of(const LstmStates& states, int64_t step, int64_t sequence) {
  const int64_t row = step * states.batch + sequence, at = row * states.hidden;
  const float* const before =
      step == 0 ? states.first_cells + sequence * states.hidden : states.cells + (row - states.batch) * states.hidden;
  return {states.hidden, states.gates + row * states.row_gates(), before, states.cells + at, states.tanh_cells + at};
}

inline bool lstm_forward(const LstmStates& states, LstmProduct of_step, const IndexRange& batch) {
  of_step.a = states.first_hidden, of_step.c = states.gates, of_step.adds = true;
  NanWatch nan;
  for (int64_t step = 0; step < states.steps; ++step) {
    lstm_multiply(of_step, batch);
    float* const out = states.out + step * states.batch * states.hidden;
    for (int64_t i = batch.begin; i < batch.end; ++i) {
      lstm_forward_row(row_of(states, step, i), states.bias, out + i * states.hidden, nan);
    }
    of_step.a = out;
    of_step.c += states.batch * states.row_gates();
  }
  return !nan.any();
}

inline bool lstm_backward(const LstmStates& states, const LstmGradients& grads, LstmProduct of_step,
                          const IndexRange& batch) {
  const int64_t hidden = states.hidden;
  of_step.c = grads.of_hidden;
  NanWatch nan;
  bool numbers = true;
  for (int64_t step = states.steps - 1; step >= 0; --step) {
    for (int64_t i = batch.begin; i < batch.end; ++i) {
      const int64_t at = step * grads.of_out_step + i * grads.of_out_sequence;
      const LstmRowGradients of_row{grads.of_out != nullptr ? grads.of_out + at : nullptr, grads.of_hidden + i * hidden,
                                    grads.of_cells + i * hidden};
      lstm_backward_row(row_of(states, step, i), of_row, nan);
    }
    of_step.a = states.gates + step * states.batch * states.row_gates();
    numbers = lstm_multiply(of_step, batch) && numbers;
  }
  return numbers && !nan.any();
}

// Sums over the steps from the last one on, each over the batch.
inline void lstm_bias_gradient(const LstmStates& states, float* to) {
  const int64_t gates = states.row_gates();
  for (int64_t g = 0; g < gates; ++g) to[g] = 0;
  for (int64_t step = states.steps - 1; step >= 0; --step) {
    for (int64_t row = step * states.batch; row < (step + 1) * states.batch; ++row) {
      for (int64_t g = 0; g < gates; g += kLanes)
        store(to + g, add(load(to + g), load(states.gates + row * gates + g)));
    }
  }
}

// to[columns][rows] = from[rows][columns].
inline void lstm_transpose(const float* from, int64_t rows, int64_t columns, float* to) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      const Matrix part{from + i * columns + j, columns, smaller_of(rows - i, kLanes), smaller_of(columns - j, kLanes)};
      transpose_some(part, to + j * rows + i, rows);
    }
  }
}

constexpr LstmKernels kLstmKernels = {lstm_pack,     lstm_multiply,      lstm_forward,
                                      lstm_backward, lstm_bias_gradient, lstm_transpose};

}  // namespace

}  // namespace duet
