#include <limits>
#include <vector>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

// Max pooling and its backward, plane by plane. Nothing is rounded but the sums of windows that overlap.

namespace duet {

namespace {

// x -> (y, indices), or backward: (y, indices) -> x, where x and y hold gradients.
struct MaxPoolTensors {
  at::Tensor x, y, indices;

  // No larger than indices of 32 bits reach.
  bool fit() const {
    return are_images(x) && are_images(y) && x.dim() >= 3 && indices.defined() && indices.is_contiguous() &&
           indices.sizes() == y.sizes() && x.size(-2) * x.size(-1) < std::numeric_limits<int32_t>::max() / 2 &&
           share_no_memory({x, y, indices}, {});
  }
  int64_t planes() const { return x.numel() / (x.size(-2) * x.size(-1)); }
  MaxPool sizes() const { return {x.size(-2), x.size(-1), y.size(-2), y.size(-1)}; }
};

// max_pool2d_with_indices(x, window, stride, padding, dilation, ceil_mode) -> (y, indices)
RowByRow max_pool_rows(const OpCall& call) {
  const auto kernel = cpu_kernels().max_pool.forward;
  const MaxPoolTensors t{call.floats(0), call.result(0), call.result(1)};
  if (kernel == nullptr || !t.fit() || pair_of(call.arguments[4], {1, 1}) != Pair{1, 1}) return {};
  const Pair window = pair_of(call.arguments[1], {0, 0}), padding = pair_of(call.arguments[3], {0, 0});
  const Pair stride = pair_of(call.arguments[2], window);
  MaxPool pool = t.sizes();
  pool.window_height = window[0], pool.window_width = window[1];
  pool.stride_height = stride[0], pool.stride_width = stride[1];
  pool.padding_height = padding[0], pool.padding_width = padding[1];
  return {t.planes(), {t.x, t.y, t.indices}, [=](int64_t begin, int64_t end) {
            auto* const indices = static_cast<int64_t*>(t.indices.mutable_data_ptr());
            kernel({pool, floats_of(t.x), writable_floats_of(t.y), indices}, {begin, end});
          }};
}

// max_pool2d_with_indices_backward(grad, x, window, stride, padding, dilation, ceil_mode, indices) -> grad_x
RowByRow max_pool_backward_rows(const OpCall& call) {
  const auto kernel = cpu_kernels().max_pool.backward;
  const at::Tensor x = call.floats(1);  // of which nothing is read
  const MaxPoolTensors t{call.result(0), call.floats(0), call.arguments[7].toTensor()};
  if (kernel == nullptr || !are_images(x) || !t.fit()) return {};
  return {t.planes(), {t.x, t.y, t.indices, x}, [kernel, t](int64_t begin, int64_t end) {
            const auto* const indices = static_cast<const int64_t*>(t.indices.const_data_ptr());
            kernel({t.sizes(), floats_of(t.y), indices, writable_floats_of(t.x)}, {begin, end});
          }};
}

template <RowByRow (*by_rows)(const OpCall& call)>
CallKernel make_max_pool(const OpCall& call) {
  const RowByRow work = by_rows(call);
  if (work.rows == 0) return {};
  return [work] {
    run_all(work, work.cut.front().numel());
    return true;
  };
}

// `x`: the argument whose columns indices count in a trial.
template <RowByRow (*by_rows)(const OpCall& call)>
CallKernelMaker maker(const char* op, const char* overload, int x) {
  return {op, overload, "bit-exact max_pool2d", make_max_pool<by_rows>, {.classes = x, .dims_of_rows = 3}, by_rows};
}

}  // namespace

void find_bitexact_max_pools(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  constexpr const char *kForward = "aten::max_pool2d_with_indices",
                       *kBackward = "aten::max_pool2d_with_indices_backward";
  static const std::vector<CallKernelMaker> makers = {
      maker<max_pool_rows>(kForward, "", 0), maker<max_pool_rows>(kForward, "out", 0),
      maker<max_pool_backward_rows>(kBackward, "", 1), maker<max_pool_backward_rows>(kBackward, "grad_input", 1)};
  if (threads_round_alike()) find_call_kernels(makers, calls, kernels);
}

}  // namespace duet
