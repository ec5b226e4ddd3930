#pragma once

#include "graph/kernels/flash_attention_loops.h"

namespace duet {

namespace {

// The sum of the products, lane by lane.
float sum_of_products(const float* a, const float* b, int64_t width) {
  Floats sum = multiply(load(a), load(b));
  for (int64_t j = kLanes; j < width; j += kLanes) sum = add(sum, multiply(load(a + j), load(b + j)));
  return fold_lanes(sum, add_values);
}

bool has_nan(Rows<float> rows, const RowShape& shape) {
  NanWatch nan;
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t j = 0; j < shape.width; j += kLanes) nan.see(load(rows.row(i) + j));
  }
  return nan.any();
}

// One head.
struct AttentionGradients {
  AttentionGradients(const AttentionBackward& backward, int64_t first_head) : work(backward), head(first_head) {}
  const AttentionBackward& work;
  int64_t head;

  alignas(64) float scaled_keys[kLongestSequence * kWidestHead];
  alignas(64) float keys[kLongestSequence * kWidestHead];  // scaled and transposed
  alignas(64) float values[kLongestSequence * kWidestHead];
  alignas(64) float scaled_queries[kQueryBlock * kWidestHead];
  alignas(64) float weights[kQueryBlock * kLongestSequence];
  alignas(64) float grads[kQueryBlock * kLongestSequence];
  NanWatch log_sums;  // NaN for those that are not finite

  template <class Number>
  Rows<Number> rows(const Heads<Number>& all) const {
    return rows_of(all, work.shape, head);
  }

  // Scores become weights again, and the gradients of weights those of scores.
  void weigh(const QueryBlock& block, int64_t i) {
    const Attention& shape = work.shape;
    const int64_t query = block.first + i, seen = block.seen_by(i);
    const Floats log_sum = broadcast(*rows(work.log_sum).row(query));
    const float* grad_out = rows(work.grad_out).row(query);
    log_sums.see(subtract(log_sum, log_sum));
    const Floats mean = broadcast(sum_of_products(grad_out, rows(work.out).row(query), shape.width));
    float *weight = weights + i * block.stride, *grad = grads + i * block.stride;
    int64_t j = 0;
    for (; j < seen; j += kLanes) {
      const Floats power = vector_exp(subtract(load(weight + j), log_sum));
      const Floats seen_power = select(first_lanes(seen - j), power, broadcast(0.0F));
      store(weight + j, seen_power);
      store(grad + j, multiply(seen_power, subtract(load(grad + j), mean)));
    }
    if (j < shape.length) store(weight + j, broadcast(0.0F)), store(grad + j, broadcast(0.0F));
  }

  void compute(const QueryBlock& block) {
    const Attention& shape = work.shape;
    const Rows<const float> grad_out = rows(work.grad_out).from(block.first), queries = rows(shape.q).from(block.first);
    const int64_t width = shape.width;
    scale_rows(queries, {block.rows, width}, shape.scale, scaled_queries);
    block.score(rows(shape.q), {rows(shape.k), shape.scale, {keys, kTileColumns}}, weights);
    block.score(rows(work.grad_out), {rows(shape.v), 1, {values, kTileColumns}}, grads);
    for (int64_t i = 0; i < block.rows; ++i) weigh(block, i);
    block.mix(grads, {rows(shape.k), shape.scale, {scaled_keys, width}}, rows(work.grad_q).from(block.first),
              Start::kZero);
    block.mix_back(weights, {grad_out, 1, grad_out}, rows(work.grad_v));
    block.mix_back(grads, {queries, shape.scale, {scaled_queries, width}}, rows(work.grad_k));
  }

  // Whether ATen gives the same for certain.
  bool compute() {
    const Attention& shape = work.shape;
    const RowShape all{shape.length, shape.width};
    if (!inputs_are_moderate(shape, head) || !are_moderate(work.grad_out, shape, head) ||
        !are_moderate(work.out, shape, head)) {
      return false;
    }
    scale_rows(rows(shape.k), all, shape.scale, scaled_keys);
    transpose_rows({scaled_keys, shape.width}, all, keys);
    transpose_rows(rows(shape.v), all, values);
    for (int64_t first = 0; first < shape.length; first += kQueryBlock) compute(QueryBlock(shape, first));
    return !log_sums.any() && !has_nan(rows(work.grad_q), all) && !has_nan(rows(work.grad_k), all) &&
           !has_nan(rows(work.grad_v), all);
  }
};

bool attention_backward(const AttentionBackward& work, const RowRange& heads) {
  AttentionGradients gradients(work, heads.begin);
  for (; gradients.head < heads.end; ++gradients.head) {
    if (!gradients.compute()) return false;
  }
  return true;
}

}  // namespace

}  // namespace duet
