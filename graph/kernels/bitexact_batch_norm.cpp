#include <algorithm>
#include <vector>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

// Batch norm with the statistics of the batch, and its backward. The order of its sums is known; which products ATen's
// compiler fused into sums, and which of two NaN a sum gives, is tried.

namespace duet {

namespace {

ImageBatch batch_of(const at::Tensor& x) { return {x.size(0), x.size(1), x.numel() / x.size(0) / x.size(1)}; }

bool are_normed(const at::Tensor& x) { return are_images(x) && x.dim() >= 3 && batch_of(x).pixels >= kFewestPixels; }

bool are_like(const at::Tensor& images, const at::Tensor& x) {
  return are_images(images) && images.sizes() == x.sizes();
}

bool is_vector_if_given(const OpCall& call, std::size_t argument, int64_t channels) {
  return call.lacks(argument) || is_contiguous_float(call.floats(argument), channels);
}

// native_batch_norm(x, weight, bias, running_mean, running_variance, training, momentum, epsilon)
//   -> (y, mean, inverse_std)
struct BatchNorm {
  explicit BatchNorm(const OpCall& call)
      : x(call.floats(0)),
        weight(call.floats(1)),
        bias(call.floats(2)),
        running_mean(call.floats(3)),
        running_variance(call.floats(4)),
        y(call.result(0)),
        mean(call.result(1)),
        inverse_std(call.result(2)),
        momentum(call.arguments[6].toDouble()),
        epsilon(call.arguments[7].toDouble()),
        fits(is_taken(call)) {}

  int64_t channels() const { return x.size(1); }

  BatchNormForward work() const {
    const ChannelStatistics statistics{writable_floats_of(mean),
                                       writable_floats_of(inverse_std),
                                       writable_floats_of(running_mean),
                                       writable_floats_of(running_variance),
                                       momentum,
                                       epsilon};
    return {batch_of(x), floats_of(x), writable_floats_of(y), floats_of(weight), floats_of(bias), statistics};
  }

  // Of some channels, that the cache still holds when their pixels are read again.
  void compute(int64_t begin, int64_t end) const {
    constexpr int64_t kTogether = 16;  // whose sums one vector holds
    const BatchNormKernels& kernels = cpu_kernels().batch_norm;
    const BatchNormForward all = work();
    for (int64_t c = begin; c < end; c += kTogether) {
      const int64_t last = std::min(end, c + kTogether);
      kernels.statistics(all, {c, last});
      for (int64_t first = 0; first < all.batch.images * channels(); first += channels())
        kernels.normalize(all, {first + c, first + last});
    }
  }

  at::Tensor x, weight, bias, running_mean, running_variance, y, mean, inverse_std;
  double momentum, epsilon;
  bool fits;

 private:
  bool is_taken(const OpCall& call) const {
    if (cpu_kernels().batch_norm.normalize == nullptr || !are_normed(x) || !call.arguments[5].toBool()) return false;
    bool vectors = is_contiguous_float(mean, channels()) && is_contiguous_float(inverse_std, channels());
    for (const std::size_t vector : {1, 2, 3, 4}) vectors = vectors && is_vector_if_given(call, vector, channels());
    return vectors && are_like(y, x) &&
           share_no_memory({y, mean, inverse_std}, {x, weight, bias, running_mean, running_variance});
  }
};

CallKernel make_batch_norm(const OpCall& call) {
  const BatchNorm norm(call);
  if (!norm.fits) return {};
  return [norm] {
    for_each_part(norm.channels(), norm.x.numel(), [&](int64_t begin, int64_t end) { norm.compute(begin, end); });
    return true;
  };
}

// Plane by plane.
RowByRow batch_norm_rows(const OpCall& call) {
  const BatchNorm norm(call);
  if (!norm.fits) return {};
  const BatchNormKernels& kernels = cpu_kernels().batch_norm;
  return {norm.x.size(0) * norm.channels(),
          {norm.x, norm.y},
          [norm, &kernels](int64_t begin, int64_t end) { kernels.normalize(norm.work(), {begin, end}); },
          [norm, &kernels] {
            for_each_part(norm.channels(), norm.x.numel(),
                          [&](int64_t begin, int64_t end) { kernels.statistics(norm.work(), {begin, end}); });
          }};
}

// A gradient that is asked for must be there, and no other.
bool fits_mask(const at::Tensor& grad, bool wanted, bool is_fit) { return wanted ? is_fit : !grad.defined(); }

// native_batch_norm_backward(grad, x, weight, running_mean, running_variance, mean, inverse_std, train, epsilon,
//   mask) -> (grad_x, grad_weight, grad_bias)
CallKernel make_batch_norm_backward(const OpCall& call) {
  const auto kernel = cpu_kernels().batch_norm.backward;
  const at::Tensor grad = call.floats(0), x = call.floats(1), weight = call.floats(2);
  const at::Tensor mean = call.floats(5), inverse_std = call.floats(6);
  const at::Tensor grad_x = call.result(0), grad_weight = call.result(1), grad_bias = call.result(2);
  if (kernel == nullptr || !are_normed(x) || !are_like(grad, x) || !call.arguments[7].toBool()) return {};
  const int64_t channels = x.size(1);
  const auto mask = call.arguments[9].toBoolList();
  const bool fits = is_vector_if_given(call, 2, channels) && is_contiguous_float(mean, channels) &&
                    is_contiguous_float(inverse_std, channels) && fits_mask(grad_x, mask[0], are_like(grad_x, x)) &&
                    fits_mask(grad_weight, mask[1], is_contiguous_float(grad_weight, channels)) &&
                    fits_mask(grad_bias, mask[2], is_contiguous_float(grad_bias, channels)) &&
                    share_no_memory({grad_x, grad_weight, grad_bias}, {grad, x, weight, mean, inverse_std});
  if (!fits) return {};
  return [=] {
    const BatchNormBackward work{batch_of(x),
                                 floats_of(grad),
                                 floats_of(x),
                                 floats_of(weight),
                                 floats_of(mean),
                                 floats_of(inverse_std),
                                 writable_floats_of(grad_x),
                                 writable_floats_of(grad_weight),
                                 writable_floats_of(grad_bias)};
    for_each_part(channels, x.numel(), [&](int64_t begin, int64_t end) { kernel(work, {begin, end}); });
    return true;
  };
}

}  // namespace

void find_bitexact_batch_norms(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  constexpr const char* kName = "bit-exact batch norm";
  const auto forward = [](const char* overload) {
    return CallKernelMaker{.op = "aten::native_batch_norm",
                           .overload = overload,
                           .name = kName,
                           .make = make_batch_norm,
                           .rules = {.dims_of_rows = 2},
                           .by_rows = batch_norm_rows};
  };
  static const std::vector<CallKernelMaker> makers = {
      forward(""),
      forward("out"),
      {"aten::native_batch_norm_backward", "", kName, make_batch_norm_backward, {.dims_of_rows = 2}}};
  if (threads_round_alike()) find_call_kernels(makers, calls, kernels);
}

}  // namespace duet
