#include <algorithm>
#include <array>
#include <cmath>
#include <vector>
#include <ATen/Parallel.h>
#include <ATen/core/Reduction.h>
#include <ATen/ops/empty.h>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

// Sums of columns and layer norm; softmax, its logarithm and the negative log-likelihood of the right classes, which is
// what cross entropy is made of. In small tensors most of their time goes by before the arithmetic begins.

namespace duet {

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
  if (!fits || !share_no_memory({y}, {x}) || cpu_kernels().rows.column_sum == nullptr) return {};
  return [=] {
    const ColumnSum work{shape, floats_of(x), writable_floats_of(y)};
    return on_all_ranges((shape.width + kColumnBlock - 1) / kColumnBlock, x.numel(),
                         [&](const IndexRange& blocks) { return cpu_kernels().rows.column_sum(work, blocks); });
  };
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
  if (!fits || cpu_kernels().rows.layer_norm_forward == nullptr) return {};
  const auto epsilon = static_cast<float>(call.arguments[4].toDouble());
  return [=] {
    return on_all_ranges(shape.rows, x.numel(), [&](const IndexRange& rows) {
      const int64_t first = rows.begin * shape.width;
      return cpu_kernels().rows.layer_norm_forward({{rows.end - rows.begin, shape.width},
                                                    floats_of(x) + first,
                                                    floats_of(weight),
                                                    floats_of(bias),
                                                    epsilon,
                                                    writable_floats_of(y) + first,
                                                    writable_floats_of(mean) + rows.begin,
                                                    writable_floats_of(inverse_std) + rows.begin});
    });
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
  if (!fits || cpu_kernels().rows.layer_norm_backward == nullptr) return {};
  const int64_t parts = std::min<int64_t>(shape.rows, at::in_parallel_region() ? 1 : at::get_num_threads());
  const at::Tensor sums = at::empty({parts * norm_sums(shape.width)}, at::TensorOptions().dtype(at::kFloat));
  return [=] {
    const LayerNormBackward work{shape,
                                 floats_of(grad),
                                 floats_of(x),
                                 floats_of(mean),
                                 floats_of(inverse_std),
                                 floats_of(weight),
                                 writable_floats_of(grad_x),
                                 writable_floats_of(grad_weight),
                                 writable_floats_of(grad_bias),
                                 parts,
                                 writable_floats_of(sums)};
    const auto some_parts = [&](const IndexRange& range) {
      bool all = true;
      for (int64_t part = range.begin; part < range.end; ++part)
        all = cpu_kernels().rows.layer_norm_backward(work, part) && all;
      return all;
    };
    return on_all_ranges(parts, x.numel(), some_parts) && cpu_kernels().rows.add_norm_parts(work);
  };
}

// Of more elements the exponentials take the time, and those are ATen's own.
RowShape softmax_rows(const at::Tensor& x, const c10::IValue& dimension) {
  constexpr int64_t kMostElements = int64_t{1} << 15;
  if (!x.defined() || x.dim() == 0 || x.numel() > kMostElements) return {};
  const int64_t last = x.dim() - 1, d = dimension.toInt();
  return d == last || d == -1 ? rows_of(x, x.size(last)) : RowShape();
}

// {_softmax, _log_softmax}(x, dimension, half_to_float, y)
CallKernel make_row_softmax(const OpCall& call, bool (*kernel)(const Softmax&)) {
  const at::Tensor x = call.floats(0), y = call.result(0);
  const RowShape shape = softmax_rows(x, call.arguments[1]);
  if (kernel == nullptr || shape.rows == 0 || !is_contiguous_float(y, x.numel()) || !share_no_memory({y}, {x}))
    return {};
  return [=] { return kernel({shape, floats_of(x), writable_floats_of(y)}); };
}

CallKernel make_softmax(const OpCall& call) { return make_row_softmax(call, cpu_kernels().softmax.forward); }
CallKernel make_log_softmax(const OpCall& call) { return make_row_softmax(call, cpu_kernels().softmax.log_forward); }

// _log_softmax_backward_data(grad, y, dimension, dtype, grad_x)
CallKernel make_log_softmax_backward(const OpCall& call) {
  const at::Tensor grad = call.floats(0), y = call.floats(1), grad_x = call.result(0);
  const RowShape shape = softmax_rows(y, call.arguments[2]);
  const auto kernel = cpu_kernels().softmax.log_backward;
  const bool fits = kernel != nullptr && shape.rows > 0 && is_contiguous_float(grad, y.numel()) &&
                    is_contiguous_float(grad_x, y.numel());
  if (!fits || !share_no_memory({grad_x}, {grad, y})) return {};
  return [=] { return kernel({shape, floats_of(grad), floats_of(y), writable_floats_of(grad_x)}); };
}

// What the two ops below have in common: a row per sample, without weights of the classes.
struct Classes {
  RowShape shape;
  at::Tensor targets;
  int64_t ignored;
  bool mean;

  const int64_t* target_data() const { return static_cast<const int64_t*>(targets.const_data_ptr()); }
  // A target that is none is an error, which is ATen's to raise.
  bool has(int64_t target) const { return target >= 0 && target < shape.width; }
};

// From `first` on the call has: x, target, weight, reduction, ignore_index. No rows: it does not fit.
Classes classes_of(const OpCall& call, std::size_t first) {
  const at::Tensor x = call.floats(first);
  const bool is_matrix = x.defined() && x.dim() == 2 && call.arguments[first + 1].isTensor() && call.lacks(first + 2);
  if (!is_matrix) return {};
  const int64_t reduction = call.arguments[first + 3].toInt();
  if (reduction == at::Reduction::None) return {};
  const at::Tensor& targets = call.arguments[first + 1].toTensor();
  const bool fits = targets.is_cpu() && targets.scalar_type() == at::kLong && targets.is_contiguous() &&
                    targets.dim() == 1 && targets.size(0) == x.size(0);
  return {fits ? rows_of(x, x.size(1)) : RowShape(), targets, call.arguments[first + 4].toInt(),
          reduction == at::Reduction::Mean};
}

constexpr int kLossLevels = 8;
using LossSums = std::array<float, kLossLevels>;

// After each sample: a full chain of losses is added to the next one, as in ATen's sums.
void carry(LossSums& sums, int64_t sample, int power) {
  const int64_t mask = (int64_t{1} << power) - 1;
  for (int level = 0; level + 1 < kLossLevels && (sample & (mask << (level * power))) == 0; ++level) {
    sums[level + 1] += sums[level];
    sums[level] = 0;
  }
}

bool nll_loss(const Classes& classes, const float* x, float* loss, float* total_weight) {
  const auto [rows, width] = classes.shape;
  const int log2 = rows <= 2 ? 1 : 64 - __builtin_clzll(static_cast<uint64_t>(rows) - 1);
  LossSums sums{};
  int64_t counted = 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t target = classes.target_data()[i];
    if (target == classes.ignored) continue;
    if (!classes.has(target)) return false;
    ++counted;
    sums[0] -= x[i * width + target];
    carry(sums, i, std::max(4, log2 / kLossLevels));
  }
  float sum = 0;
  for (const float part : sums) sum += part;
  *total_weight = static_cast<float>(counted);
  *loss = classes.mean ? sum / *total_weight : sum;
  return !std::isnan(*loss);
}

// nll_loss_forward(x, target, weight, reduction, ignore_index) -> (loss, total_weight)
CallKernel make_nll_loss(const OpCall& call) {
  const Classes classes = classes_of(call, 0);
  const at::Tensor x = call.floats(0), loss = call.result(0), total_weight = call.result(1);
  const bool fits = classes.shape.rows > 0 && is_contiguous_float(loss, 1) && is_contiguous_float(total_weight, 1);
  if (!fits || !share_no_memory({loss, total_weight}, {x, classes.targets})) return {};
  return [=] { return nll_loss(classes, floats_of(x), writable_floats_of(loss), writable_floats_of(total_weight)); };
}

bool nll_loss_backward(const Classes& classes, float grad, float* grad_x) {
  const auto [rows, width] = classes.shape;
  std::fill_n(grad_x, rows * width, 0.0F);
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t target = classes.target_data()[i];
    if (target == classes.ignored) continue;
    if (!classes.has(target)) return false;
    grad_x[i * width + target] = grad;
  }
  return !std::isnan(grad);
}

// nll_loss_backward(grad, x, target, weight, reduction, ignore_index, total_weight) -> grad_x
CallKernel make_nll_loss_backward(const OpCall& call) {
  const Classes classes = classes_of(call, 1);
  const at::Tensor grad = call.floats(0), total_weight = call.floats(6), grad_x = call.result(0);
  const bool fits = classes.shape.rows > 0 && is_contiguous_float(grad, 1) && is_contiguous_float(total_weight, 1) &&
                    is_contiguous_float(grad_x, classes.shape.rows * classes.shape.width);
  if (!fits || !share_no_memory({grad_x}, {grad, classes.targets, total_weight})) return {};
  return [=] {
    const float value = *floats_of(grad);
    return nll_loss_backward(classes, -(classes.mean ? value / *floats_of(total_weight) : value),
                             writable_floats_of(grad_x));
  };
}

}  // namespace

void find_bitexact_rows(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  static const std::vector<CallKernelMaker> makers = {
      {"aten::sum", "IntList_out", "bit-exact sum", make_column_sum},
      {"aten::native_layer_norm", "", "bit-exact layer norm", make_layer_norm},
      {"aten::native_layer_norm_backward", "", "bit-exact layer norm", make_layer_norm_backward},
      {"aten::_softmax", "out", "bit-exact softmax", make_softmax},
      {"aten::_log_softmax", "out", "bit-exact softmax", make_log_softmax},
      {"aten::_log_softmax_backward_data", "out", "bit-exact softmax", make_log_softmax_backward},
      {"aten::nll_loss_forward", "output", "bit-exact loss", make_nll_loss, {.classes = 0}},
      {"aten::nll_loss_backward", "grad_input", "bit-exact loss", make_nll_loss_backward, {.classes = 1}},
  };
  if (threads_round_alike()) find_call_kernels(makers, calls, kernels);
}

}  // namespace duet
