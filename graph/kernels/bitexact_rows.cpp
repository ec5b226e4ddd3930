#include "graph/kernels/bitexact_rows.h"
#include <algorithm>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include "graph/kernels/kernel_tensors.h"

// Sums of columns and layer norm. In small tensors most of their time goes by before the arithmetic begins.

namespace duet {

namespace {

// ATen's kernels with AVX2 are those that it runs with AVX-512 too.
const RowKernels& row_kernels() {
  static const RowKernels kernels = atens_choice(row_kernels_avx2(), row_kernels_avx2());
  return kernels;
}

// Larger ones are worth ATen's threads; and beyond, what goes by before the arithmetic no longer counts.
bool is_small(const at::Tensor& x) {
  constexpr int64_t kMostElements = int64_t{1} << 18, kWorthThreads = int64_t{1} << 15;
  return x.numel() > 0 && x.numel() <= (at::get_num_threads() > 1 ? kWorthThreads : kMostElements);
}

}  // namespace

RowShape rows_of(const at::Tensor& x, int64_t width) {
  const bool fits = x.defined() && width > 0 && x.is_contiguous() && is_small(x) && x.numel() % width == 0;
  return fits ? RowShape{x.numel() / width, width} : RowShape();
}

namespace {

// The width that is left after the sum of the leading dimensions; 0: others are summed.
int64_t width_after_sum(const at::Tensor& x, const c10::IValue& dimensions) {
  if (!x.defined() || !dimensions.isIntList()) return 0;
  std::vector<int64_t> summed = dimensions.toIntVector();
  for (int64_t& d : summed) d = d < 0 ? d + x.dim() : d;
  std::sort(summed.begin(), summed.end());
  int64_t width = x.numel();
  for (std::size_t i = 0; i < summed.size(); ++i) {
    if (summed[i] != static_cast<int64_t>(i) || x.size(summed[i]) == 0) return 0;
    width /= x.size(summed[i]);
  }
  return summed.empty() ? 0 : width;
}

// sum(x, dimensions, keepdim, dtype, y)
CallKernel make_column_sum(const OpCall& call) {
  const at::Tensor x = call.floats(0), y = call.result(0);
  const RowShape shape = rows_of(x, width_after_sum(x, call.arguments[1]));
  const bool fits = shape.width > 1 && call.arguments[3].isNone() && is_contiguous_float(y, shape.width);
  if (!fits || !share_no_memory({y}, {x}) || row_kernels().column_sum == nullptr) return {};
  return [=] { return row_kernels().column_sum({shape, floats_of(x), writable_floats_of(y)}); };
}

RowShape normed_rows(const at::Tensor& x, const at::Tensor& weight) {
  const RowShape shape = rows_of(x, weight.defined() && weight.is_contiguous() ? weight.numel() : 0);
  return shape.width >= kNarrowestNorm && shape.width <= kWidestNorm ? shape : RowShape();
}

bool is_plain_if_wanted(const at::Tensor& tensor, int64_t elements) {
  return !tensor.defined() || is_contiguous_float(tensor, elements);
}

// native_layer_norm(x, shape, weight, bias, epsilon) -> (y, mean, inverse_std)
CallKernel make_layer_norm(const OpCall& call) {
  const at::Tensor x = call.floats(0), weight = call.floats(2), bias = call.floats(3);
  const at::Tensor y = call.result(0), mean = call.result(1), inverse_std = call.result(2);
  const auto shape = normed_rows(x, weight);
  const bool fits = shape.rows > 0 && (call.lacks(3) || is_contiguous_float(bias, shape.width)) &&
                    is_contiguous_float(y, x.numel()) && is_contiguous_float(mean, shape.rows) &&
                    is_contiguous_float(inverse_std, shape.rows) &&
                    share_no_memory({y, mean, inverse_std}, {x, weight, bias});
  if (!fits || row_kernels().layer_norm_forward == nullptr) return {};
  const auto epsilon = static_cast<float>(call.arguments[4].toDouble());
  return [=] {
    return row_kernels().layer_norm_forward({shape, floats_of(x), floats_of(weight), floats_of(bias), epsilon,
                                             writable_floats_of(y), writable_floats_of(mean),
                                             writable_floats_of(inverse_std)});
  };
}

// native_layer_norm_backward(grad, x, shape, mean, inverse_std, weight, bias, mask)
//   -> (grad_x, grad_weight, grad_bias)
CallKernel make_layer_norm_backward(const OpCall& call) {
  const at::Tensor grad = call.floats(0), x = call.floats(1), mean = call.floats(3), inverse_std = call.floats(4),
                   weight = call.floats(5);
  const at::Tensor grad_x = call.result(0), grad_weight = call.result(1), grad_bias = call.result(2);
  const auto shape = normed_rows(x, weight);
  const bool fits = shape.rows > 0 && is_contiguous_float(grad, x.numel()) && is_contiguous_float(mean, shape.rows) &&
                    is_contiguous_float(inverse_std, shape.rows) && is_plain_if_wanted(grad_x, x.numel()) &&
                    is_plain_if_wanted(grad_weight, shape.width) && is_plain_if_wanted(grad_bias, shape.width) &&
                    share_no_memory({grad_x, grad_weight, grad_bias}, {grad, x, mean, inverse_std, weight});
  if (!fits || row_kernels().layer_norm_backward == nullptr) return {};
  const int64_t parts = std::min<int64_t>(shape.rows, at::in_parallel_region() ? 1 : at::get_num_threads());
  const at::Tensor sums = at::empty({norm_sums(shape.width)}, at::TensorOptions().dtype(at::kFloat));
  return [=] {
    return row_kernels().layer_norm_backward({shape, floats_of(grad), floats_of(x), floats_of(mean),
                                              floats_of(inverse_std), floats_of(weight), writable_floats_of(grad_x),
                                              writable_floats_of(grad_weight), writable_floats_of(grad_bias), parts,
                                              writable_floats_of(sums)});
  };
}

}  // namespace

const std::vector<CallKernelMaker>& row_sum_kernels() {
  static const std::vector<CallKernelMaker> makers = {
      {"aten::sum", "IntList_out", "bit-exact sum", make_column_sum},
      {"aten::native_layer_norm", "", "bit-exact layer norm", make_layer_norm},
      {"aten::native_layer_norm_backward", "", "bit-exact layer norm", make_layer_norm_backward},
  };
  return makers;
}

void find_bitexact_rows(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  if (!threads_round_alike()) return;
  find_call_kernels(row_sum_kernels(), calls, kernels);
  find_call_kernels(loss_kernels(), calls, kernels);
  find_call_kernels(attention_kernels(), calls, kernels);
}

}  // namespace duet
