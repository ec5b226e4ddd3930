#include <algorithm>
#include <optional>
#include <utility>
#include <vector>
#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/native/ConvUtils.h>
#include "graph/kernels/call_kernels.h"
#include "graph/kernels/cpu_kernels.h"
#include "graph/kernels/kernel_tensors.h"

// Convolutions over one or two dimensions, and their backward. oneDNN's kernels add up in an order that is the same for
// every shape but, with AVX2, where they cut the channels of an input's gradient; where that is another one, the trial
// says so.

namespace duet {

namespace {

struct ConvTensors {
  at::Tensor x, weight, y;
};

// The arguments from `first` on are: stride, padding, dilation, transposed, output padding, groups, of which weights
// tell.
struct ConvNumbers {
  Pair stride, padding, dilation;
  bool transposed;

  ConvNumbers(const OpCall& call, std::size_t first)
      : stride(pair_of(call.arguments[first], {1, 1})),
        padding(pair_of(call.arguments[first + 1], {0, 0})),
        dilation(pair_of(call.arguments[first + 2], {1, 1})),
        transposed(call.arguments[first + 3].toBool()) {}
};

// Whether LibTorch asks oneDNN, for floats as they are.
bool is_onednns(const OpCall& call, std::size_t first, const ConvTensors& t) {
  const auto numbers = [&](std::size_t i) {
    const std::vector<int64_t> given = call.arguments[first + i].toIntVector();
    return std::vector<c10::SymInt>(given.begin(), given.end());
  };
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::MKLDNN, at::Float32Op::CONV);
  if (precision != at::Float32Precision::NONE && precision != at::Float32Precision::IEEE) return false;
  const auto backend = at::native::select_conv_backend(t.x, t.weight, std::nullopt, numbers(0), numbers(1), numbers(2),
                                                       false, numbers(4), 1, at::OptionalSymIntArrayRef());
  return backend == at::native::ConvBackend::Mkldnn;
}

// Not of one tap or one pixel, nor images that are smaller than the taps reach: oneDNN takes those for products, which
// threads may cut, and which it cuts by the number of images.
bool fit_taps(const ConvTensors& t, const ConvNumbers& numbers) {
  bool fit = t.weight.numel() > t.weight.size(0) * t.weight.size(1) && t.y.numel() > t.y.size(0) * t.y.size(1);
  for (int64_t dim = 2; dim < t.x.dim(); ++dim) {
    const std::size_t axis = dim - t.x.dim() + 2;
    const int64_t reach = (t.weight.size(dim) - 1) * numbers.dilation[axis];
    fit = fit && numbers.padding[axis] <= reach && reach < t.x.size(dim);
  }
  return fit;
}

bool fit(const ConvTensors& t, const ConvNumbers& numbers) {
  const int64_t dims = t.x.defined() ? t.x.dim() : 0;
  return (dims == 3 || dims == 4) && are_images(t.x) && are_images(t.y) && is_contiguous_float(t.weight) &&
         t.weight.dim() == dims && t.y.dim() == dims && t.weight.size(1) == t.x.size(1) && !numbers.transposed &&
         fit_taps(t, numbers);
}

// With what has one dimension as rows of an image.
template <class Work>
Work work_of(const ConvTensors& t, const ConvNumbers& numbers) {
  Work work;
  work.images = t.x.size(0), work.channels = t.x.size(1), work.out_channels = t.y.size(1);
  const auto axis = [&](std::size_t i) {
    const auto dim = static_cast<int64_t>(i) - 2;
    return ConvAxis{t.x.size(dim),     t.y.size(dim),       t.weight.size(dim),
                    numbers.stride[i], numbers.dilation[i], numbers.padding[i]};
  };
  work.width = axis(1);
  if (t.x.dim() == 4) {
    work.height = axis(0);
  } else {
    work.height = {.in = 1, .out = 1, .taps = 1};
  }
  return work;
}

// How oneDNN with AVX-512 takes the channels: vector by vector.
bool adds_vectors() { return cpu_kernels().conv.lanes == 16; }

Convolution forward_of(const ConvTensors& t, const ConvNumbers& numbers) {
  constexpr int64_t kFirstCache = 288;  // weights of an output channel; a tile has 16 of those
  const int64_t lanes = cpu_kernels().conv.lanes;
  auto work = work_of<Convolution>(t, numbers);
  const int64_t taps = work.height.taps * work.width.taps;
  work.weights_of_channel = taps, work.weights_of_out_channel = taps * work.channels;
  work.adds_parts = adds_vectors();
  work.channels_at_once = work.adds_parts ? lanes : std::max<int64_t>(kFirstCache / taps / lanes, 1) * lanes;
  return work;
}

// The gradient of x, which is a convolution of that of y.
Convolution backward_of(const ConvTensors& t, const ConvNumbers& numbers) {
  Convolution work = forward_of(t, numbers);
  const int64_t width = work.width.out, lanes = cpu_kernels().conv.lanes;  // by which oneDNN chooses
  work.channels_at_once = adds_vectors() ? lanes : lanes * (width < 15 ? 4 : width < 40 ? 2 : 1);
  work.adds_parts = true;
  work.reversed = true;
  std::swap(work.channels, work.out_channels);
  std::swap(work.weights_of_channel, work.weights_of_out_channel);
  for (ConvAxis* axis : {&work.height, &work.width}) {
    std::swap(axis->in, axis->out);
    axis->padding = (axis->taps - 1) * axis->dilation - axis->padding;
  }
  return work;
}

// Image by image.
bool run(const Convolution& work, int64_t elements) {
  const ConvKernels& kernels = cpu_kernels().conv;
  const int64_t parts = number_of_parts(work.images, elements), of_part = kernels.images_size(work);
  float* const ordered = scratch_memory(kernels.weights_size(work) + parts * of_part);
  float* const scratch = ordered + kernels.weights_size(work);
  kernels.order_weights(work, ordered);
  return on_all_parts(work.images, parts, [&](int64_t part, const IndexRange& images) {
    return kernels.images(work, images, ordered, scratch + part * of_part);
  });
}

bool run(const ConvWeightsGradient& work, int64_t elements) {
  const ConvKernels& kernels = cpu_kernels().conv;
  const int64_t parts = number_of_parts(work.channels, elements),
                of_part = kernels.gradient_size(work, (work.channels + parts - 1) / parts);
  float* const scratch = scratch_memory(parts * of_part);
  return on_all_parts(work.channels, parts, [&](int64_t part, const IndexRange& channels) {
    return kernels.weights_gradient(work, channels, scratch + part * of_part);
  });
}

// oneDNN fills other blocks of channels up with zeros, which makes 0 of a -0; but not in a first layer.
bool are_whole_blocks(int64_t channels) { return channels % cpu_kernels().conv.lanes == 0; }
bool are_taken(int64_t channels) { return are_whole_blocks(channels) || channels < cpu_kernels().conv.lanes; }

// As many threads take part as ATen has; each takes whole images.
bool are_enough(const at::Tensor& images) { return images.size(0) >= at::get_num_threads(); }

// convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups) -> y
CallKernel make_conv(const OpCall& call) {
  const ConvTensors t{call.floats(0), call.floats(1), call.result(0)};
  const ConvNumbers numbers(call, 3);
  const at::Tensor bias = call.floats(2);
  const bool fits = cpu_kernels().conv.images != nullptr && fit(t, numbers) && are_enough(t.x) &&
                    are_taken(t.x.size(1)) && (call.lacks(2) || is_contiguous_float(bias, t.y.size(1))) &&
                    is_onednns(call, 3, t) && share_no_memory({t.y}, {t.x, t.weight, bias});
  if (!fits) return {};
  const Convolution work = forward_of(t, numbers);
  return [=] {
    Convolution now = work;
    now.in = floats_of(t.x), now.weights = floats_of(t.weight), now.bias = floats_of(bias);
    now.out = writable_floats_of(t.y);
    return run(now, t.y.numel());
  };
}

// The part of the op that ATen computes.
void backward_as_aten(const OpCall& call) {
  OpCall part = call;
  part.arguments[10] = c10::List<bool>({true, false, false});
  part.results = {call.result(0)};
  part.run_as_aten();
}

// convolution_backward(grad, x, weight, bias_sizes, stride, padding, dilation, transposed, output_padding, groups,
// mask)
//   -> (grad_x, grad_weight, grad_bias)
template <bool kOwnGradX>
CallKernel make_conv_backward(const OpCall& call) {
  const at::Tensor grad = call.floats(0), x = call.floats(1), weight = call.floats(2);
  const at::Tensor grad_x = call.result(0), grad_weight = call.result(1), grad_bias = call.result(2);
  const ConvTensors t{x, weight, grad};
  const ConvNumbers numbers(call, 4);
  const auto mask = call.arguments[10].toBoolList();
  const bool fits = cpu_kernels().conv.images != nullptr && fit(t, numbers) && are_enough(t.x) && mask[1] &&
                    is_contiguous_float(grad_weight, weight.numel()) &&
                    (mask[2] ? is_contiguous_float(grad_bias, weight.size(0)) : !grad_bias.defined()) &&
                    (mask[0] ? are_images(grad_x) && grad_x.sizes() == x.sizes() : !grad_x.defined()) &&
                    is_onednns(call, 4, t) && share_no_memory({grad_x, grad_weight, grad_bias}, {grad, x, weight});
  if (!fits) return {};
  const Convolution of_x = backward_of(t, numbers);
  const bool fits_x = are_whole_blocks(grad.size(1)) && numbers.stride == Pair{1, 1};
  if (kOwnGradX ? mask[0] && !fits_x : !mask[0]) return {};
  const auto of_weights = work_of<ConvWeightsGradient>(t, numbers);
  return [=] {
    ConvWeightsGradient now = of_weights;
    now.in = floats_of(x), now.grad = floats_of(grad);
    now.grad_weights = writable_floats_of(grad_weight), now.grad_bias = writable_floats_of(grad_bias);
    if (!run(now, grad.numel())) return false;
    if (!grad_x.defined()) return true;
    if (!kOwnGradX) {
      backward_as_aten(call);
      return true;
    }
    Convolution x_now = of_x;
    x_now.in = floats_of(grad), x_now.weights = floats_of(weight), x_now.out = writable_floats_of(grad_x);
    return run(x_now, grad_x.numel());
  };
}

// Some images tell for all: so many that LibTorch asks oneDNN. But how threads share the work may depend on all.
OpCall of_first_images(const OpCall& call) {
  const bool is_backward = call.is("aten::convolution_backward", "");
  if (at::get_num_threads() > 1) return call;
  const at::Tensor x = call.floats(is_backward ? 1 : 0), weight = call.floats(is_backward ? 2 : 1);
  const at::Tensor y = is_backward ? call.floats(0) : call.result(0);
  int64_t count = 2;
  const auto first = [&](const at::Tensor& tensor) { return tensor.narrow(0, 0, count); };
  while (count < x.size(0) && !is_onednns(call, is_backward ? 4 : 3, {first(x), weight, first(y)})) ++count;
  if (count >= x.size(0)) return call;
  OpCall part = call;
  part.arguments[0] = first(call.floats(0));
  if (is_backward) part.arguments[1] = first(x);
  if (part.results[0].defined()) part.results[0] = first(part.results[0]);
  return part;
}

}  // namespace

void find_bitexact_convs(const std::vector<OpCall>& calls, BitexactKernels& kernels) {
  const auto maker = [](const char* op, CallKernel (*make)(const OpCall&)) {
    CallKernelMaker found{op, "", "bit-exact convolution", make};
    found.tried = of_first_images;
    found.must_be_faster = true;
    return found;
  };
  static const std::vector<CallKernelMaker> makers = {
      maker("aten::convolution", make_conv),
      maker("aten::convolution_backward", make_conv_backward<true>),
      maker("aten::convolution_backward", make_conv_backward<false>),
  };
  // The sign of a zero among those around an image would matter otherwise.
  if (rounding_is_default()) find_call_kernels(makers, calls, kernels);
}

}  // namespace duet
