#pragma once

#include "graph/kernels/lstm_cells.h"
#include "graph/kernels/lstm_products.h"

// An LSTM's steps and the gradients of its weights, over the vectors of avx2_simd.h.

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

// Scratch of a weights' gradient: rows of a block, with the gates by 6 and then with some of the columns by 16, and the
// columns that are added up by parity, [column][gate].
constexpr int64_t kColumnsAtOnce = 80;
struct WeightsScratch {
  float *gates, *columns, *last;
  WeightsScratch(const LstmWeightsGradient& work, float* scratch)
      : gates(scratch),
        columns(gates + work.order.gradient_terms * (work.gates + kOneDnnRows)),
        last(columns + work.order.gradient_terms * kColumnsAtOnce) {}
};
inline int64_t lstm_weights_gradient_size(int64_t gates, int64_t rows) {
  return rows * (gates + kOneDnnRows + kColumnsAtOnce) + kOneDnnRows / 2 * gates;
}

inline void copy_gates(const LstmWeightsGradient& block, const IndexRange& gates, float* to) {
  for (int64_t row = 0; row < block.rows; ++row) {
    const float* const from = block.of_gates + row * block.gates;
    int64_t g = gates.begin;
    for (; g + kOneDnnRows <= gates.end; g += kOneDnnRows) {
      __builtin_memcpy(to + (g - gates.begin) * block.rows + row * kOneDnnRows, from + g, kOneDnnRows * sizeof(float));
    }
    for (int64_t i = g; i < gates.end; ++i) to[(g - gates.begin) * block.rows + row * kOneDnnRows + i - g] = from[i];
  }
}

inline bool add_columns(const LstmWeightsGradient& block, const IndexRange& gates, const IndexRange& columns,
                        const WeightsScratch& scratch) {
  copy_block({.b = block.in, .b_row = block.columns, .b_column = 1}, {0, block.rows, columns.begin, columns.end},
             scratch.columns);
  NanWatch nan;
  Tile tile{};
  tile.a_row = 1, tile.a_column = kOneDnnRows;
  tile.b = scratch.columns, tile.b_row = kTileColumns;
  tile.c_row = block.columns;
  tile.k = block.rows;
  tile.has_sum = true, tile.first = !block.adds;
  tile.nan = &nan;
  for (int64_t j = columns.begin; j < columns.end; j += kTileColumns) {
    const int64_t count = smaller_of(columns.end - j, kTileColumns), vectors = (count + kLanes - 1) / kLanes;
    tile.last_columns = count - (vectors - 1) * kLanes;
    for (int64_t g = gates.begin; g < gates.end; g += kOneDnnRows) {
      tile.a = scratch.gates + (g - gates.begin) * block.rows;
      tile.c = block.to + g * block.columns + j;
      const int64_t rows = smaller_of(gates.end - g, kOneDnnRows);
      vectors == 1 ? compute_rows<1>(tile, rows) : compute_rows<2>(tile, rows);
    }
    tile.b += block.rows * kTileColumns;
  }
  return !nan.any();
}

inline void add_last_columns(const LstmWeightsGradient& block, const IndexRange& gates, const IndexRange& columns,
                             const WeightsScratch& scratch) {
  Tile tile{};
  tile.a = block.in + columns.begin, tile.a_row = 1, tile.a_column = block.columns;
  tile.b_row = tile.c_row = block.gates;
  tile.k = block.rows;
  tile.has_sum = true;
  tile.last_columns = kLanes;
  const int64_t count = columns.end - columns.begin;
  const auto for_all = [&](const auto& use) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t g = gates.begin; g < gates.end; ++g) {
        use(scratch.last[i * block.gates + g], block.to[g * block.columns + columns.begin + i]);
      }
    }
  };
  for_all([&](float& sum, const float& to) { sum = block.adds ? to : 0; });
  for (int64_t g = gates.begin; g < gates.end; g += kTileColumns) {
    tile.b = block.of_gates + g;
    tile.c = scratch.last + g;
    multiply_by_parity(tile, {0, count}, count, kTileColumns);
  }
  for_all([](const float& sum, float& to) { to = sum; });
}

// `gates`: a multiple of 16 of them.
inline bool lstm_weights_gradient(const LstmWeightsGradient& work, const IndexRange& gates, float* memory) {
  const WeightsScratch scratch(work, memory);
  const RowsTogether columns{work.columns, work.columns_of_thread, work.order.by_parity};
  LstmWeightsGradient block = work;
  bool numbers = true;
  for (int64_t left = work.rows; left > 0; left -= block.rows) {
    block.rows = terms_of_block(left, work.order.gradient_terms);
    copy_gates(block, gates, scratch.gates);
    for_rows_together(columns, {0, work.columns}, [&](int64_t begin, int64_t end, int64_t together) {
      if (together != 0) return add_last_columns(block, gates, {begin, end}, scratch);
      numbers = add_columns(block, gates, {begin, end}, scratch) && numbers;
    });
    block.of_gates += block.rows * work.gates, block.in += block.rows * work.columns;
    block.adds = true;
  }
  return numbers;
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

constexpr LstmKernels kLstmKernels = {
    lstm_panels_size,  lstm_pack,     lstm_pack_transposed,  lstm_multiply,
    lstm_forward,      lstm_backward, lstm_weights_gradient, lstm_weights_gradient_size,
    lstm_bias_gradient};

}  // namespace

}  // namespace duet
