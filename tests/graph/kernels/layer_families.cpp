#include <functional>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros_like.h>
#include "tests/graph/kernels/call_families.h"

namespace duet::testing {

using at::Tensor;
using Sizes = std::vector<int64_t>;

Calls convolution_calls(const std::vector<Tensor>& x_weight_bias, const ConvolutionNumbers& numbers, bool wants_x) {
  const Tensor &x = x_weight_bias[0], &weight = x_weight_bias[1], &bias = x_weight_bias[2];
  Sizes y = {x.size(0), weight.size(0)};
  for (std::size_t i = 0; i < numbers.stride.size(); ++i) {
    const int64_t reach = numbers.dilation[i] * (weight.size(static_cast<int64_t>(i) + 2) - 1) + 1;
    y.push_back((x.size(static_cast<int64_t>(i) + 2) + 2 * numbers.padding[i] - reach) / numbers.stride[i] + 1);
  }
  const auto& [stride, padding, dilation] = numbers;
  const Sizes none(stride.size(), 0);
  Calls calls;
  calls.add("aten::convolution", "", {x, weight, bias, stride, padding, dilation, false, none, 1}, {target(y)});
  calls.add("aten::convolution_backward", "",
            {at::full(y, 1, at::kFloat), x, weight, Sizes{weight.size(0)}, stride, padding, dilation, false, none, 1,
             c10::List<bool>({wants_x, true, bias.defined()})},
            {wants_x ? target(x.sizes()) : Tensor(), target(weight.sizes()),
             bias.defined() ? target(bias.sizes()) : Tensor()});
  return calls;
}

Calls lstm_calls(const LstmSizes& sizes, const std::vector<Tensor>& x_weights_biases_states,
                 const std::vector<Tensor>& gradients) {
  constexpr int64_t kLstm = 2, kLayers = 1;
  const Sizes none;
  Calls calls;
  std::vector<c10::IValue> forward(x_weights_biases_states.begin(), x_weights_biases_states.end());
  std::vector<c10::IValue> backward = forward;
  for (const c10::IValue& number : std::vector<c10::IValue>{sizes.reverse, none, kLstm, sizes.hidden, kLayers,
                                                            sizes.has_biases, false, false, true}) {
    forward.push_back(number);
  }
  calls.add("aten::mkldnn_rnn_layer", "", forward);
  {
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const at::AutoGradMode with_workspace(true);
    calls.calls[0].op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), &forward);
  }
  for (const c10::IValue& result : forward)
    calls.calls[0].results.push_back(at::empty_like(result.toTensor()).fill_(7));
  for (std::size_t i = 0; i < 3; ++i) backward.emplace_back(calls.calls[0].results[i]);
  backward.insert(backward.end(), gradients.begin(), gradients.end());
  for (const c10::IValue& number : std::vector<c10::IValue>{sizes.reverse, kLstm, sizes.hidden, kLayers,
                                                            sizes.has_biases, true, false, none, false}) {
    backward.push_back(number);
  }
  backward.emplace_back(calls.calls[0].results[3]);
  std::vector<Tensor> results;
  for (const std::size_t i : {0, 1, 2}) results.push_back(target(x_weights_biases_states[i].sizes()));
  for (int i = 0; i < 2; ++i) results.push_back(target({4 * sizes.hidden}));
  for (const std::size_t i : {5, 6}) results.push_back(target(x_weights_biases_states[i].sizes()));
  calls.add("aten::mkldnn_rnn_layer_backward", "", backward, results);
  return calls;
}

namespace {

// A gradient of [steps, batch, hidden] as it comes from what follows a layer: its own memory, of a layer whose first
// dimension is the batch, of a sum over either, of one direction.
Tensor gradient_of_out(const LstmSizes& sizes, const std::function<Tensor(at::IntArrayRef)>& numbers, Random& random) {
  const int64_t steps = sizes.steps, batch = sizes.batch, hidden = sizes.hidden;
  switch (random.between(0, 4)) {
    case 0: return numbers({steps, batch, hidden});
    case 1: return numbers({batch, steps, hidden}).transpose(0, 1);
    case 2: return numbers({batch, hidden}).expand({steps, batch, hidden});
    case 3: return numbers({steps, 1, hidden}).expand({steps, batch, hidden});
    default: return numbers({steps, batch, 2 * hidden}).narrow(2, hidden, hidden);
  }
}

}  // namespace

Calls lstm_calls(const LstmSizes& sizes, int kind, float scale, Random& random) {
  const auto& [steps, batch, inputs, hidden, reverse, has_biases] = sizes;
  const auto numbers = [&](at::IntArrayRef shape) { return floats_of_kind(shape, kind, random).mul_(scale); };
  std::vector<Tensor> tensors;
  for (const Sizes& shape : std::vector<Sizes>{{steps, batch, inputs}, {4 * hidden, inputs}, {4 * hidden, hidden}}) {
    tensors.push_back(numbers(shape));
  }
  for (const std::size_t weight : {1, 2}) {
    tensors.push_back(has_biases ? numbers({4 * hidden}) : at::zeros_like(tensors[weight]));
  }
  for (int i = 0; i < 2; ++i) tensors.push_back(numbers({batch, hidden}));
  const auto maybe = [&] { return random.coin() ? numbers({batch, hidden}) : Tensor(); };
  const Tensor last_hidden = maybe(), last_cells = maybe();
  const bool has_out = random.between(0, 4) > 0 || (!last_hidden.defined() && !last_cells.defined());
  const Tensor out = has_out ? gradient_of_out(sizes, numbers, random) : Tensor();
  return lstm_calls(sizes, tensors, {out, last_hidden, last_cells});
}

Calls some_lstm(Random& random, int kind) {
  const int64_t batch = random.between(0, 7) == 0 ? random.between(127, 130) : random.between(1, 25);
  const LstmSizes sizes{random.between(1, 12), batch,
                        random.between(1, 40), random.one_of<int64_t>({8, 12, 16, 24, 64, 72, 136}),
                        random.coin(),         random.between(0, 3) > 0};
  return lstm_calls(sizes, kind, random.one_of<float>({1, 1.0F / 4, 1.0F / 16, 1.0F / 64}), random);
}

// Large enough for oneDNN, most of them.
Calls some_convolution(Random& random, int kind) {
  const int64_t channels = random.one_of<int64_t>({1, 3, 8, 16, 17, 40, 64});
  const int64_t out = random.coin() ? random.between(1, 40) : random.one_of<int64_t>({8, 16, 32, 48});
  Sizes x = {random.one_of<int64_t>({3, 16, 17}), channels}, weight = {out, channels};
  ConvolutionNumbers numbers;
  for (int64_t dims = random.between(1, 2); dims > 0; --dims) {
    numbers.padding.push_back(random.between(0, 2));
    numbers.dilation.push_back(random.between(0, 5) == 0 ? 2 : 1);
    numbers.stride.push_back(random.between(0, 3) == 0 ? random.between(2, 4) : 1);
    weight.push_back(random.between(1, 4));
    x.push_back(random.between(numbers.dilation.back() * weight.back(), random.coin() ? 12 : 45));
  }
  const auto of_some_kind = [&](at::IntArrayRef sizes) {
    return floats_of_kind(sizes, random.coin() ? kind : static_cast<int>(random.between(0, 1)), random);
  };
  Calls calls = convolution_calls(
      {of_some_kind(x), of_some_kind(weight), random.coin() ? of_some_kind({out}) : Tensor()}, numbers, random.coin());
  const Tensor grad = calls.calls[1].arguments[0].toTensor();
  grad.copy_(of_some_kind(grad.sizes()));
  return calls;
}

}  // namespace duet::testing
