#include <array>
#include <cmath>
#include <ATen/core/Reduction.h>
#include "graph/kernels/bitexact_rows.h"
#include "graph/kernels/kernel_tensors.h"

// Softmax, its logarithm and the negative log-likelihood of the right classes, which is what cross entropy is made of.

namespace duet {

const SoftmaxKernels& softmax_kernels() {
  static const SoftmaxKernels kernels = atens_choice(softmax_kernels_avx512(), softmax_kernels_avx2());
  return kernels;
}

namespace {

// Of more elements the exponentials take the time, and those are ATen's own.
RowShape softmax_rows(const at::Tensor& x, const c10::IValue& dimension) {
  constexpr int64_t kMostElements = int64_t{1} << 15;
  if (!x.defined() || x.dim() == 0 || x.numel() > kMostElements) return {};
  const int64_t last = x.dim() - 1, d = dimension.toInt();
  return d == last || d == -1 ? rows_of(x, x.size(last)) : RowShape();
}

// {_softmax, _log_softmax}(x, dimension, half_to_float, y)
CallKernel make_forward(const OpCall& call, bool (*kernel)(const Softmax&)) {
  const at::Tensor x = call.floats(0), y = call.result(0);
  const RowShape shape = softmax_rows(x, call.arguments[1]);
  if (kernel == nullptr || shape.rows == 0 || !is_contiguous_float(y, x.numel()) || !share_no_memory({y}, {x}))
    return {};
  return [=] { return kernel({shape, floats_of(x), writable_floats_of(y)}); };
}

CallKernel make_softmax(const OpCall& call) { return make_forward(call, softmax_kernels().forward); }
CallKernel make_log_softmax(const OpCall& call) { return make_forward(call, softmax_kernels().log_forward); }

// _log_softmax_backward_data(grad, y, dimension, dtype, grad_x)
CallKernel make_log_softmax_backward(const OpCall& call) {
  const at::Tensor grad = call.floats(0), y = call.floats(1), grad_x = call.result(0);
  const RowShape shape = softmax_rows(y, call.arguments[2]);
  const auto kernel = softmax_kernels().log_backward;
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

const std::vector<CallKernelMaker>& loss_kernels() {
  static const std::vector<CallKernelMaker> makers = {
      {"aten::_softmax", "out", "bit-exact softmax", make_softmax},
      {"aten::_log_softmax", "out", "bit-exact softmax", make_log_softmax},
      {"aten::_log_softmax_backward_data", "out", "bit-exact softmax", make_log_softmax_backward},
      {"aten::nll_loss_forward", "output", "bit-exact loss", make_nll_loss, /*classes=*/0},
      {"aten::nll_loss_backward", "grad_input", "bit-exact loss", make_nll_loss_backward, /*classes=*/1},
  };
  return makers;
}

}  // namespace duet
