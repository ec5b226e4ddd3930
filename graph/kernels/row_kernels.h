#pragma once

#include <cstdint>
#include "graph/kernels/index_range.h"

// Sums, norms and losses over the rows of a float matrix without gaps: ATen's order of arithmetic, less time before it
// begins. Which of two NaN an operation hands on is the compiler's choice: a kernel that has written a NaN gives false,
// and ATen's own is to run.

namespace duet {

struct RowShape {
  int64_t rows = 0, width = 0;
};

// y = the sum of each column.
struct ColumnSum {
  RowShape shape;
  const float* x = nullptr;
  float* y = nullptr;
};
constexpr int64_t kColumnBlock = 32;  // whose columns are summed alike, but for the last ones

struct LayerNormForward {
  RowShape shape;
  const float* x = nullptr;
  const float* weight = nullptr;
  const float* bias = nullptr;  // null: zeros
  float epsilon = 0;
  float* y = nullptr;
  float* mean = nullptr;
  float* inverse_std = nullptr;
};

struct LayerNormBackward {
  RowShape shape;
  const float* grad = nullptr;
  const float* x = nullptr;
  const float* mean = nullptr;
  const float* inverse_std = nullptr;
  const float* weight = nullptr;
  float* grad_x = nullptr;  // null: not wanted, as the two below
  float* grad_weight = nullptr;
  float* grad_bias = nullptr;
  int64_t parts = 1;      // ATen's threads, each of which sums some of the rows
  float* sums = nullptr;  // memory for norm_sums() floats of each part
};

constexpr int64_t kNarrowestNorm = 8;  // rows that the norms take
constexpr int64_t kWidestNorm = 1 << 14;
constexpr int64_t norm_sums(int64_t width) { return 2 * width + 16; }  // both sums of a part, in whole vectors

// Softmax or its logarithm, of each row.
struct Softmax {
  RowShape shape;
  const float* x = nullptr;
  float* y = nullptr;
};

// Of the logarithm.
struct SoftmaxBackward {
  RowShape shape;
  const float* grad = nullptr;
  const float* y = nullptr;
  float* grad_x = nullptr;
};

// Rows of vectors without gaps, for each batch and head.
template <class Number>
struct Heads {
  Number* data = nullptr;
  int64_t batch = 0, head = 0, row = 0;  // strides
};

constexpr int64_t kQueryBlock = 32;                                // rows that ATen takes at a time
constexpr int64_t kShortestSequence = 16, kLongestSequence = 128;  // that the kernels take
constexpr int64_t kNarrowestHead = 16, kWidestHead = 64;           // multiples of 16

// BLAS's sgemm_.
using Sgemm = void (*)(const char* transpose_a, const char* transpose_b, const int* m, const int* n, const int* k,
                       const float* alpha, const float* a, const int* lda, const float* b, const int* ldb,
                       const float* beta, float* c, const int* ldc);

// Each of `length` queries attends to as many keys, or (causal) to those up to its own.
struct Attention {
  int64_t heads = 0, length = 0, width = 0;
  bool causal = false;
  float scale = 1;
  Sgemm blas = nullptr;  // for products of a single row, which has an order of its own there; null: MKL's on AMD's CPUs
  // Backward: whether BLAS multiplies these products by the scale, and not a factor of theirs.
  bool scales_scores = false, scales_gradients = false;
  Heads<const float> q, k, v;
};

struct AttentionForward {
  Attention shape;
  Heads<float> out, log_sum;  // of the exponentials of each row of scores
};

struct AttentionBackward {
  Attention shape;
  Heads<const float> out, log_sum, grad_out;
  Heads<float> grad_q, grad_k, grad_v;
};

struct RowKernels {
  bool (*column_sum)(const ColumnSum& work, const IndexRange& blocks) = nullptr;
  bool (*layer_norm_forward)(const LayerNormForward& work) = nullptr;
  bool (*layer_norm_backward)(const LayerNormBackward& work, int64_t part) = nullptr;
  bool (*add_norm_parts)(const LayerNormBackward& work) = nullptr;  // grad_weight and grad_bias
};

struct SoftmaxKernels {
  bool (*forward)(const Softmax& work) = nullptr;
  bool (*log_forward)(const Softmax& work) = nullptr;
  bool (*log_backward)(const SoftmaxBackward& work) = nullptr;
  // Some of batches * heads. False also for numbers of which a mask could hide what ATen makes of them.
  bool (*attention)(const AttentionForward& work, const IndexRange& heads) = nullptr;
  bool (*attention_backward)(const AttentionBackward& work, const IndexRange& heads) = nullptr;
};

}  // namespace duet
