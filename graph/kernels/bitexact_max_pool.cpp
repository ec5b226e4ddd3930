#include <algorithm>
#include <array>
#include <functional>
#include <limits>
#include <optional>
#include <vector>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/max_pool2d_with_indices.h>
#include <ATen/ops/max_pool2d_with_indices_backward.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"

namespace duet {

namespace {

// x -> (y, indices), or backward: (y, indices) -> x, where x and y hold gradients.
struct MaxPoolTensors {
  at::Tensor x, y, indices;
};

// Plane by plane.
RowByRow max_pool_forward_rows(const MaxPoolKernels& kernels, const MaxPool& pool, const MaxPoolTensors& t) {
  return {t.x.numel() / (pool.height * pool.width), {t.x, t.y, t.indices}, [=](int64_t begin, int64_t end) {
            const MaxPoolForward work{pool, floats_of(t.x), writable_floats_of(t.y),
                                      static_cast<int64_t*>(t.indices.mutable_data_ptr())};
            kernels.forward(work, {begin, end});
          }};
}

RowByRow max_pool_backward_rows(const MaxPoolKernels& kernels, const MaxPool& pool, const MaxPoolTensors& t) {
  return {t.x.numel() / (pool.height * pool.width), {t.x, t.y, t.indices}, [=](int64_t begin, int64_t end) {
            const MaxPoolBackward work{pool, floats_of(t.y), static_cast<const int64_t*>(t.indices.const_data_ptr()),
                                       writable_floats_of(t.x)};
            kernels.backward(work, {begin, end});
          }};
}

std::function<void()> all_planes(const RowByRow& work) {
  return [work] { run_all(work, work.cut.front().numel()); };
}

bool pools_alike(const MaxPoolKernels& kernels, int64_t window, int64_t stride, TrialNumbers numbers) {
  constexpr int64_t kPlanes = 3, kHeight = 11, kWidth = 43;
  const int64_t padding = window / 2;
  const at::Tensor x = trial_tensor({kPlanes, kHeight, kWidth}, numbers, 1);
  const std::array<int64_t, 2> windows{window, window}, strides{stride, stride}, paddings{padding, padding}, one{1, 1};
  const auto [y, indices] = at::max_pool2d_with_indices(x, windows, strides, paddings);
  const MaxPool pool{kHeight, kWidth, y.size(1), y.size(2), window, window, stride, stride, padding, padding};
  const at::Tensor our_y = at::empty_like(y), our_indices = at::empty_like(indices), our_grad_x = at::empty_like(x);
  all_planes(max_pool_forward_rows(kernels, pool, {x, our_y, our_indices}))();
  if (!same_bits(y, our_y) || !same_bits(indices, our_indices)) return false;

  const at::Tensor grad = trial_tensor(y.sizes(), numbers, 2);
  all_planes(max_pool_backward_rows(kernels, pool, {our_grad_x, grad, our_indices}))();
  const at::Tensor expected =
      at::max_pool2d_with_indices_backward(grad, x, windows, strides, paddings, one, /*ceil_mode=*/false, indices);
  return same_bits(expected, our_grad_x);
}

}  // namespace

// Nothing is rounded but the sums of windows that overlap.
bool max_pool_is_bitexact(const MaxPoolKernels& kernels) {
  if (kernels.forward == nullptr || kernels.backward == nullptr) return false;
  const TrialGuard guard;
  for (const TrialNumbers numbers : {TrialNumbers::kPlain, TrialNumbers::kSpecial, TrialNumbers::kNan}) {
    for (const int64_t window : {1, 2, 3}) {
      for (const int64_t stride : {1, 2, 3}) {
        if (!pools_alike(kernels, window, stride, numbers)) return false;
      }
    }
  }
  return true;
}

namespace {

// Plane by plane, and no larger than indices of 32 bits reach.
bool fit(const MaxPoolTensors& t) {
  return are_images(t.x) && are_images(t.y) && t.x.dim() >= 3 && t.indices.defined() && t.indices.is_contiguous() &&
         t.indices.sizes() == t.y.sizes() && t.x.size(-2) * t.x.size(-1) < std::numeric_limits<int32_t>::max() / 2 &&
         share_no_memory({t.x, t.y, t.indices}, {});
}

// The arguments from `first` on are: window, stride, padding, dilation.
std::optional<MaxPool> pool_of(const OpCall& call, std::size_t first, const MaxPoolTensors& t) {
  if (!fit(t)) return std::nullopt;
  const auto numbers = [&](std::size_t i, const Pair& otherwise) {
    return pair_of(call.arguments[first + i], otherwise);
  };
  const Pair window = numbers(0, {0, 0}), padding = numbers(2, {0, 0});
  const Pair stride = numbers(1, window);
  const MaxPool pool{t.x.size(-2), t.x.size(-1), t.y.size(-2), t.y.size(-1), window[0],
                     window[1],    stride[0],    stride[1],    padding[0],   padding[1]};
  return numbers(3, {1, 1}) == Pair{1, 1} ? std::optional(pool) : std::nullopt;
}

// max_pool2d_with_indices(x, window, stride, padding, dilation, ceil_mode) -> (y, indices)
bool is_pool(const OpCall& call) {
  return call.is("aten::max_pool2d_with_indices", "") || call.is("aten::max_pool2d_with_indices", "out");
}

// max_pool2d_with_indices_backward(grad, x, window, stride, padding, dilation, ceil_mode, indices) -> grad_x
bool is_pool_backward(const OpCall& call) {
  return call.is("aten::max_pool2d_with_indices_backward", "") ||
         call.is("aten::max_pool2d_with_indices_backward", "grad_input");
}

void take_backwards(const std::vector<OpCall>& calls, std::size_t forward, const MaxPool& pool,
                    BitexactKernels& kernels) {
  const at::Tensor indices = calls[forward].result(1);
  for (std::size_t i = forward + 1; i < calls.size() && calls[i].segment == calls[forward].segment; ++i) {
    if (calls[i].writes(indices)) return;
    const auto& arguments = calls[i].arguments;
    if (!is_pool_backward(calls[i]) || !arguments[7].isTensor() || !arguments[7].toTensor().is_same(indices)) continue;
    const MaxPoolTensors tensors{calls[i].result(0), calls[i].floats(0), indices};
    const std::optional<MaxPool> own = pool_of(calls[i], 2, tensors);
    if (own != pool) continue;
    RowByRow work = max_pool_backward_rows(cpu_kernels().max_pool, pool, tensors);
    if (are_images(calls[i].floats(1))) work.cut.push_back(calls[i].floats(1));  // of which nothing is read
    kernels.of_call[i] = {all_planes(work), "bit-exact max_pool2d, takes the indices"};
    kernels.of_call[i].by_rows = work;
  }
}

}  // namespace

// max_pool2d and its backward, which takes the indices that the first gave.
void find_bitexact_max_pools(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  if (std::none_of(calls.begin(), calls.end(), is_pool)) return;  // nor is a trial needed
  static Trials<int, bool> trials;
  const auto trial = [] { return max_pool_is_bitexact(cpu_kernels().max_pool); };
  if (!threads_round_alike() || !trials.of(0, kernels, trial)) return;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (!is_pool(calls[i])) continue;
    const MaxPoolTensors tensors{calls[i].floats(0), calls[i].result(0), calls[i].result(1)};
    const std::optional<MaxPool> pool = pool_of(calls[i], 1, tensors);
    if (!pool) continue;
    const RowByRow work = max_pool_forward_rows(cpu_kernels().max_pool, *pool, tensors);
    kernels.of_call[i] = {all_planes(work), "bit-exact max_pool2d"};
    kernels.of_call[i].by_rows = work;
    take_backwards(calls, i, *pool, kernels);
  }
}

}  // namespace duet
