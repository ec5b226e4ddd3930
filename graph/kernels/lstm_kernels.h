#pragma once

#include <cstdint>
#include "graph/kernels/index_range.h"

// A layer of an LSTM in one direction, and its backward: the bits of oneDNN's kernels, less time. All floats
// lie without gaps. A row is one sequence at one step, row r that of step r / batch; its gates are input, forget, cell
// and output, as many elements each as are hidden.

namespace duet {

// How oneDNN's products without copies add up an element: by one multiply-add after the other, so many terms at most in
// a block. With AVX2, where at most 3 rows or 8 columns are left, even terms and odd ones apart.
struct LstmOrder {
  int64_t product_terms = 0, gradient_terms = 0;  // of products, and of weights' gradients
  bool by_parity = false;
};
inline constexpr LstmOrder kOneDnnAvx2 = {256, 96, true}, kOneDnnAvx512 = {384, 384, false};

// c[row][column] = sum over k: a[row][k] b[k][column].
struct LstmProduct {
  int64_t rows = 0, columns = 0, depth = 0;
  const float* a = nullptr;
  int64_t a_row = 0, a_column = 0;  // from one to the next
  const float* panels = nullptr;    // of b, by LstmKernels::pack
  int64_t panel = 0;                // from one to the next
  float* c = nullptr;
  bool adds = false;  // to c
  int64_t terms = 0;  // of a block, at most
  bool by_parity = false;
  int64_t rows_of_thread = 0;  // of oneDNN's
};
constexpr int64_t panels_size(const LstmProduct& product) {  // in floats
  constexpr int64_t kPanel = 16;
  return (product.columns + kPanel - 1) / kPanel * kPanel * product.depth;
}

struct LstmStates {
  int64_t steps = 0, batch = 0, hidden = 0;
  const float* bias = nullptr;          // [4 hidden]
  const float* first_hidden = nullptr;  // [batch][hidden]
  const float* first_cells = nullptr;
  float* gates = nullptr;  // [rows][4 hidden]
  float* cells = nullptr;  // [rows][hidden]
  float* tanh_cells = nullptr;
  float* out = nullptr;

  int64_t row_gates() const { return 4 * hidden; }
};

// Of the loss, by what LstmStates has.
struct LstmGradients {
  const float* of_out = nullptr;                 // null: zeros
  int64_t of_out_step = 0, of_out_sequence = 0;  // how far apart they lie
  float* of_hidden = nullptr;                    // [batch][hidden]: by the last step's, and then by the first ones
  float* of_cells = nullptr;
};

// Each but the first and the last two works on some of the rows or of the batch. False: it has a NaN.
struct LstmKernels {
  // Of b[depth][columns], or of its transposed [columns][depth].
  void (*pack)(LstmProduct& product, const float* b, bool transposed, float* panels) = nullptr;
  bool (*multiply)(const LstmProduct& product, const IndexRange& rows) = nullptr;
  // All steps; the gates hold what the inputs give to them, `of_step` the transposed weights of hidden states.
  bool (*forward)(const LstmStates& states, LstmProduct of_step, const IndexRange& batch) = nullptr;
  // All steps from the last one on; the gates become the gradients of the sums under their functions.
  bool (*backward)(const LstmStates& states, const LstmGradients& grads, LstmProduct of_step,
                   const IndexRange& batch) = nullptr;
  void (*bias_gradient)(const LstmStates& states, float* to) = nullptr;  // from those of the gates
  void (*transpose)(const float* from, int64_t rows, int64_t columns, float* to) = nullptr;
};

}  // namespace duet
