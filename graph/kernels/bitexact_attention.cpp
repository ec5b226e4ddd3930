#include <algorithm>
#include <cmath>
#include <initializer_list>
#include "graph/kernels/bitexact_gemm.h"
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"

// Attention over short sequences. Its products take BLAS longer than their arithmetic does, and half of what ATen
// computes under a causal mask is multiplied by zeros.

namespace duet {

namespace {

template <class Number>
Heads<Number> heads_of(const at::Tensor& rows, Number* data) {
  return {data, rows.stride(0), rows.stride(1), rows.stride(2)};
}
Heads<const float> inputs_of(const at::Tensor& rows) { return heads_of(rows, floats_of(rows)); }
Heads<float> results_of(const at::Tensor& rows) { return heads_of(rows, writable_floats_of(rows)); }

enum class Single { kByBlas, kAsMklForAmd };  // who multiplies the last query, where that is alone in its block

// The call's tensors, and where in its arguments q, k, v and the flag of a causal mask are.
struct AttentionCall {
  const OpCall& call;
  std::size_t query, causal;
  Single single;

  // No heads: it does not fit.
  Attention shape() const {
    const at::Tensor q = call.floats(query);
    const std::size_t dropout = causal - 1, mask = causal + 1, scale = causal + 2;
    if (!q.defined() || q.dim() != 4 || q.numel() == 0 || call.arguments[dropout].toDouble() != 0) return {};
    const int64_t length = q.size(2), width = q.size(3);
    const bool fits = length >= kShortestSequence && length <= kLongestSequence && width % kNarrowestHead == 0 &&
                      width <= kWidestHead && call.lacks(mask) && blas_sgemm() != nullptr;
    const double factor =
        call.lacks(scale) ? 1 / std::sqrt(static_cast<double>(width)) : call.arguments[scale].toDouble();
    // Of two or three queries in the last block BLAS adds up in an order of its own.
    const int64_t rest = length % kQueryBlock;
    if (!fits || rest == 2 || rest == 3 || factor <= 0 || factor > 1) return {};
    if (single == Single::kAsMklForAmd && rest != 1) return {};
    const Sgemm blas = single == Single::kByBlas ? blas_sgemm() : nullptr;
    return {q.size(1), length, width, call.arguments[causal].toBool(), static_cast<float>(factor), blas};
  }

  // Whether the products of its last query go to BLAS, which does not take rows that overlap.
  bool has_single_query() const { return call.floats(query).size(2) % kQueryBlock == 1; }

  // All with the sizes of q and rows without gaps. Where they begin decides in which order MKL adds.
  bool have_rows(std::initializer_list<at::Tensor> tensors) const {
    const at::IntArrayRef sizes = call.floats(query).sizes();
    return std::ranges::all_of(tensors, [&](const at::Tensor& tensor) {
      return is_float(tensor) && tensor.sizes() == sizes && tensor.stride(3) == 1 &&
             (!has_single_query() || tensor.stride(2) >= tensor.size(3)) &&
             (single == Single::kByBlas || begins_at_vectors(tensor));
    });
  }
  static bool begins_at_vectors(const at::Tensor& tensor) {
    constexpr int64_t kVector = 4;
    return floats_past_alignment(tensor) % kVector == 0 &&
           std::ranges::all_of(tensor.strides().slice(0, 3), [](int64_t stride) { return stride % kVector == 0; });
  }
  bool is_row_of_each(const at::Tensor& tensor) const {
    return is_float(tensor) && tensor.sizes() == call.floats(query).sizes().slice(0, 3);
  }
};

// _scaled_dot_product_flash_attention_for_cpu(q, k, v, dropout, causal, mask, scale) -> (out, log_sum)
template <Single kSingle>
CallKernel make_attention(const OpCall& call) {
  const AttentionCall attention{call, 0, 4, kSingle};
  const at::Tensor q = call.floats(0), k = call.floats(1), v = call.floats(2);
  const at::Tensor out = call.result(0), log_sum = call.result(1);
  const Attention like = attention.shape();
  const auto kernel = cpu_kernels().softmax.attention;
  const bool fits = kernel != nullptr && like.heads > 0 && attention.have_rows({q, k, v, out}) &&
                    attention.is_row_of_each(log_sum) && share_no_memory({out, log_sum}, {q, k, v});
  if (!fits) return {};
  return [=] {
    AttentionForward work{like, results_of(out), results_of(log_sum)};
    work.shape.q = inputs_of(q), work.shape.k = inputs_of(k), work.shape.v = inputs_of(v);
    return on_all_ranges(q.size(0) * q.size(1), q.numel(),
                         [&](const IndexRange& heads) { return kernel(work, heads); });
  };
}

// ..._backward(grad_out, q, k, v, out, log_sum, dropout, causal, mask, scale) -> (grad_q, grad_k, grad_v)
template <bool kScalesScores, bool kScalesGradients, Single kSingle = Single::kByBlas>
CallKernel make_attention_backward(const OpCall& call) {
  const AttentionCall attention{call, 1, 7, kSingle};
  const at::Tensor grad_out = call.floats(0), q = call.floats(1), k = call.floats(2), v = call.floats(3);
  const at::Tensor out = call.floats(4), log_sum = call.floats(5);
  const at::Tensor grad_q = call.result(0), grad_k = call.result(1), grad_v = call.result(2);
  Attention like = attention.shape();
  like.scales_scores = kScalesScores, like.scales_gradients = kScalesGradients;
  const auto kernel = cpu_kernels().softmax.attention_backward;
  const bool fits = kernel != nullptr && like.heads > 0 &&
                    attention.have_rows({grad_out, q, k, v, out, grad_q, grad_k, grad_v}) &&
                    attention.is_row_of_each(log_sum) &&
                    // Where it must make them contiguous ATen gives BLAS another alignment.
                    (!attention.has_single_query() || grad_out.transpose(1, 2).is_contiguous()) &&
                    share_no_memory({grad_q, grad_k, grad_v}, {grad_out, q, k, v, out, log_sum});
  if (!fits) return {};
  return [=] {
    AttentionBackward work{like,
                           inputs_of(out),
                           inputs_of(log_sum),
                           inputs_of(grad_out),
                           results_of(grad_q),
                           results_of(grad_k),
                           results_of(grad_v)};
    work.shape.q = inputs_of(q), work.shape.k = inputs_of(k), work.shape.v = inputs_of(v);
    return on_all_ranges(q.size(0) * q.size(1), q.numel(),
                         [&](const IndexRange& heads) { return kernel(work, heads); });
  };
}

}  // namespace

void find_bitexact_attention(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  constexpr const char* kForward = "aten::_scaled_dot_product_flash_attention_for_cpu";
  constexpr const char* kBackward = "aten::_scaled_dot_product_flash_attention_for_cpu_backward";
  const auto maker = [](const char* op, CallKernel (*make)(const OpCall&)) {
    return CallKernelMaker{op, "", "bit-exact attention", make, {.dims_of_rows = 3}};
  };
  static const std::vector<CallKernelMaker> makers = {
      maker(kForward, make_attention<Single::kAsMklForAmd>),
      maker(kForward, make_attention<Single::kByBlas>),
      maker(kBackward, make_attention_backward<false, false, Single::kAsMklForAmd>),
      maker(kBackward, make_attention_backward<false, false>),  // MKL for AMD
      maker(kBackward, make_attention_backward<false, true>),   // MKL with AVX-512 on Intel's CPUs
      maker(kBackward, make_attention_backward<true, true>),    // the same, small products
  };
  if (threads_round_alike()) find_call_kernels(makers, calls, kernels);
}

}  // namespace duet
