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

void add_scaled_rows(Rows<const float> rows, const RowShape& shape, float scale, Rows<float> to) {
  for (int64_t i = 0; i < shape.rows; ++i) {
    for (int64_t j = 0; j < shape.width; j += kLanes) {
      store(to.row(i) + j, add(load(to.row(i) + j), multiply(load(rows.row(i) + j), broadcast(scale))));
    }
  }
}

// One head.
struct AttentionGradients {
  AttentionGradients(const AttentionBackward& backward, int64_t first_head) : work(backward), head(first_head) {}
  const AttentionBackward& work;
  int64_t head;

  alignas(64) float scaled_keys[kLongestSequence * kWidestHead];
  alignas(64) float keys[kLongestSequence * kWidestHead];  // transposed, and scaled if that comes before the product
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
    const Floats scale = broadcast(shape.scales_scores && block.rows > 1 ? shape.scale : 1);
    log_sums.see(subtract(log_sum, log_sum));
    const Floats mean = broadcast(sum_of_products(grad_out, rows(work.out).row(query), shape.width));
    float *weight = weights + i * block.stride, *grad = grads + i * block.stride;
    const auto weigh_lanes = [&](int64_t column, auto keep) {
      const Floats power = keep(vector_exp(subtract(multiply(load(weight + column), scale), log_sum)));
      store(weight + column, power);
      store(grad + column, multiply(power, subtract(load(grad + column), mean)));
    };
    int64_t j = 0;
    for (; j + kLanes <= seen; j += kLanes) weigh_lanes(j, [](Floats power) { return power; });
    if (j < seen) {
      const Mask last = first_lanes(seen - j);
      weigh_lanes(j, [&](Floats power) { return select(last, power, broadcast(0.0F)); });
      j += kLanes;
    }
    clear_unseen(weight, j, shape.length);
    clear_unseen(grad, j, shape.length);
  }

  void compute(const QueryBlock& block) {
    const Attention& shape = work.shape;
    const Rows<const float> grad_out = rows(work.grad_out).from(block.first);
    block.score(rows(shape.q), {rows(shape.k), shape.scale, {keys, kTileColumns}}, weights);
    block.score(rows(work.grad_out), {rows(shape.v), 1, {values, kTileColumns}}, grads);
    for (int64_t i = 0; i < block.rows; ++i) weigh(block, i);
    block.mix_back(weights, {grad_out, 1, grad_out}, rows(work.grad_v));
    if (shape.scales_gradients && block.rows > 1) {
      mix_then_scale(block);
    } else {
      mix_scaled_factors(block);
    }
  }

  // The gradients of queries and keys from scaled factors.
  void mix_scaled_factors(const QueryBlock& block) {
    const Attention& shape = work.shape;
    const Rows<const float> queries = rows(shape.q).from(block.first);
    scale_rows(queries, {block.rows, shape.width}, shape.scale, scaled_queries);
    block.mix(grads, {rows(shape.k), shape.scale, {scaled_keys, shape.width}}, rows(work.grad_q).from(block.first),
              Start::kZero);
    block.mix_back(grads, {queries, shape.scale, {scaled_queries, shape.width}}, rows(work.grad_k));
  }

  // The same from products that are scaled and then added.
  void mix_then_scale(const QueryBlock& block) {
    const Attention& shape = work.shape;
    const int64_t width = shape.width, seen = block.seen(), old = block.seen_before();
    const Rows<const float> queries = rows(shape.q).from(block.first), all_keys = rows(shape.k);
    const Rows<float> grad_q = rows(work.grad_q).from(block.first), grad_k = rows(work.grad_k);
    // Nobody needs scaled queries and keys then: a last block of one row goes to BLAS, which scales by itself.
    const Rows<float> of_queries{scaled_queries, width}, of_keys{scaled_keys, width};
    block.mix(grads, {all_keys, 1, all_keys}, of_queries, Start::kPart);
    clear_rows(grad_q, {block.rows, width});
    add_scaled_rows({scaled_queries, width}, {block.rows, width}, shape.scale, grad_q);

    clear_rows(of_keys, {old, width});
    block.mix_back(grads, {queries, 1, queries}, of_keys);
    clear_rows(grad_k.from(old), {seen - old, width});
    add_scaled_rows({scaled_keys, width}, {seen, width}, shape.scale, grad_k);
  }

  // Whether ATen gives the same for certain.
  bool compute() {
    const Attention& shape = work.shape;
    const RowShape all{shape.length, shape.width};
    const bool moderate =
        may_hide(shape, head) &&
        (!shape.causal || (are_moderate(work.grad_out, shape, head) && are_moderate(work.out, shape, head)));
    if (!moderate) return false;
    scale_rows(rows(shape.k), all, shape.scale, scaled_keys);
    transpose_rows(shape.scales_scores ? rows(shape.k) : Rows<const float>{scaled_keys, shape.width}, all, keys);
    transpose_rows(rows(shape.v), all, values);
    for (int64_t first = 0; first < shape.length; first += kQueryBlock) compute(QueryBlock(shape, first));
    return !log_sums.any() && !has_nan(rows(work.grad_q), all) && !has_nan(rows(work.grad_k), all) &&
           !has_nan(rows(work.grad_v), all);
  }
};

bool attention_backward(const AttentionBackward& work, const IndexRange& heads) {
  AttentionGradients gradients(work, heads.begin);
  for (; gradients.head < heads.end; ++gradients.head) {
    if (!gradients.compute()) return false;
  }
  return true;
}

}  // namespace

}  // namespace duet
