#include "graph/kernels/bitexact_batch_norm.h"
#include <algorithm>
#include <array>
#include <vector>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include "base/detail/bits.h"
#include "graph/kernels/bitexact_kernel.h"
#include "graph/kernels/kernel_tensors.h"
#include "graph/kernels/trial_data.h"

namespace duet {

// Without AVX2 ATen rounds in another way. Forward, the length of the vectors is not seen in the result.
BatchNormKernels fast_batch_norm_kernels() {
  if (!aten_uses("AVX2") && !aten_uses("AVX512")) return {};
  BatchNormKernels kernels = image_kernels_avx2().batch_norm;
  const BatchNormKernels wide = image_kernels_avx512().batch_norm;
  if (kernels.backward != nullptr && wide.forward != nullptr) kernels.forward = wide.forward;
  return kernels;
}

namespace {

ImageBatch batch_of(const at::Tensor& x) { return {x.size(0), x.size(1), x.numel() / x.size(0) / x.size(1)}; }

}  // namespace

void run_batch_norm_forward(const BatchNormKernels& kernels, const BatchNormTensors& t) {
  BatchNormForward work;
  work.batch = batch_of(t.x);
  work.x = floats_of(t.x), work.y = writable_floats_of(t.y);
  work.weight = floats_of(t.weight), work.bias = floats_of(t.bias);
  work.statistics = {writable_floats_of(t.mean),
                     writable_floats_of(t.inverse_std),
                     writable_floats_of(t.running_mean),
                     writable_floats_of(t.running_variance),
                     t.momentum,
                     t.epsilon};
  for_each_part(work.batch.channels, t.x.numel(),
                [&](int64_t begin, int64_t end) { kernels.forward(work, {begin, end}); });
}

void run_batch_norm_backward(const BatchNormKernels& kernels, const BatchNormGradTensors& t) {
  BatchNormBackward work;
  work.batch = batch_of(t.x);
  work.grad = floats_of(t.grad), work.x = floats_of(t.x), work.weight = floats_of(t.weight);
  work.mean = floats_of(t.mean), work.inverse_std = floats_of(t.inverse_std);
  work.grad_x = writable_floats_of(t.grad_x);
  work.grad_weight = writable_floats_of(t.grad_weight), work.grad_bias = writable_floats_of(t.grad_bias);
  for_each_part(work.batch.channels, t.x.numel(),
                [&](int64_t begin, int64_t end) { kernels.backward(work, {begin, end}); });
}

namespace {

bool norms_alike(const BatchNormKernels& kernels, at::IntArrayRef sizes, TrialNumbers numbers) {
  constexpr double kMomentum = 0.1;
  constexpr double kEpsilon = 1e-5;
  const auto channels = sizes.slice(1, 1);
  const at::Tensor x = trial_tensor(sizes, numbers, 1), grad = trial_tensor(sizes, numbers, 2);
  const at::Tensor weight = trial_tensor(channels, numbers, 3), bias = trial_tensor(channels, numbers, 4);
  const at::Tensor running_mean = trial_tensor(channels, numbers, 5),
                   running_variance = trial_tensor(channels, numbers, 6);
  const BatchNormTensors ours{x,
                              weight,
                              bias,
                              running_mean.clone(),
                              running_variance.clone(),
                              at::empty_like(x),
                              at::empty_like(weight),
                              at::empty_like(weight),
                              kMomentum,
                              kEpsilon};
  run_batch_norm_forward(kernels, ours);
  const auto [y, mean, deviation] = at::native_batch_norm(x, weight, bias, running_mean, running_variance,
                                                          /*training=*/true, kMomentum, kEpsilon);
  if (!same_bits(y, ours.y) || !same_bits(mean, ours.mean) || !same_bits(deviation, ours.inverse_std)) return false;
  if (!same_bits(running_mean, ours.running_mean) || !same_bits(running_variance, ours.running_variance)) return false;

  const BatchNormGradTensors grads{
      grad, x, weight, mean, deviation, at::empty_like(x), at::empty_like(weight), at::empty_like(weight)};
  run_batch_norm_backward(kernels, grads);
  const auto [grad_x, grad_weight, grad_bias] = at::native_batch_norm_backward(
      grad, x, weight, running_mean, running_variance, mean, deviation, /*train=*/true, kEpsilon, {true, true, true});
  return same_bits(grad_x, grads.grad_x) && same_bits(grad_weight, grads.grad_weight) &&
         same_bits(grad_bias, grads.grad_bias);
}

}  // namespace

bool batch_norm_is_bitexact(const BatchNormKernels& kernels) {
  if (kernels.forward == nullptr || kernels.backward == nullptr) return false;
  const TrialGuard guard;
  for (const TrialNumbers numbers :
       {TrialNumbers::kPlain, TrialNumbers::kWide, TrialNumbers::kTiny, TrialNumbers::kSpecial, TrialNumbers::kNan}) {
    for (const std::array<int64_t, 4>& sizes :
         {std::array<int64_t, 4>{1, 3, 4, 4}, {5, 19, 5, 7}, {6, 2, 8, 16}, {9, 1, 11, 13}}) {
      if (!norms_alike(kernels, sizes, numbers)) return false;
    }
  }
  return true;
}

namespace {

bool is_vector(const at::Tensor& tensor, int64_t channels) {
  return tensor.defined() && tensor.is_cpu() && tensor.scalar_type() == at::kFloat && tensor.is_contiguous() &&
         tensor.numel() == channels;
}

// An optional vector: the tensor, or an undefined one if the call lacks it. Anything else does not fit.
at::Tensor vector_of(const OpCall& call, std::size_t argument, int64_t channels, bool& fits) {
  if (call.lacks(argument)) return {};
  const at::Tensor tensor = call.floats(argument);
  fits = fits && is_vector(tensor, channels);
  return tensor;
}

bool are_normed(const at::Tensor& x) { return are_images(x) && x.dim() >= 3 && batch_of(x).pixels >= kFewestPixels; }

bool is_true(const c10::IValue& value) { return value.isBool() && value.toBool(); }

bool is_norm_backward(const OpCall& call) { return call.is("aten::native_batch_norm_backward", ""); }

bool is_norm(const OpCall& call) {
  return call.is("aten::native_batch_norm", "") || call.is("aten::native_batch_norm", "out");
}

// native_batch_norm(x, weight, bias, running_mean, running_variance, training, momentum, epsilon)
//   -> (y, mean, inverse_std)
BatchNormTensors forward_tensors(const OpCall& call) {
  const at::Tensor x = call.floats(0);
  if (!is_norm(call) || !are_normed(x) || !is_true(call.arguments[5])) return {};
  const int64_t channels = x.size(1);
  bool fits = true;
  const auto vector = [&](std::size_t i) { return vector_of(call, i, channels, fits); };
  BatchNormTensors t{x,
                     vector(1),
                     vector(2),
                     vector(3),
                     vector(4),
                     call.result(0),
                     call.result(1),
                     call.result(2),
                     call.arguments[6].toDouble(),
                     call.arguments[7].toDouble()};
  fits = fits && are_images(t.y) && t.y.sizes() == x.sizes() && is_vector(t.mean, channels) &&
         is_vector(t.inverse_std, channels) && t.epsilon >= 0 &&
         share_no_memory({t.y, t.mean, t.inverse_std}, {x, t.weight, t.bias, t.running_mean, t.running_variance});
  return fits ? t : BatchNormTensors();
}

// A gradient that is asked for must be there, and no other.
bool fits_mask(const at::Tensor& grad, bool wanted, bool is_fit) { return wanted ? is_fit : !grad.defined(); }

// native_batch_norm_backward(grad, x, weight, running_mean, running_variance, mean, inverse_std, train, epsilon,
//   mask) -> (grad_x, grad_weight, grad_bias)
BatchNormGradTensors backward_tensors(const OpCall& call) {
  const at::Tensor grad = call.floats(0), x = call.floats(1);
  const bool is_backward = is_norm_backward(call) && are_normed(x) && are_images(grad) && grad.sizes() == x.sizes() &&
                           is_true(call.arguments[7]);
  if (!is_backward || !call.arguments[9].isBoolList()) return {};
  const int64_t channels = x.size(1);
  bool fits = true;
  const BatchNormGradTensors t{grad,
                               x,
                               vector_of(call, 2, channels, fits),
                               call.floats(5),
                               call.floats(6),
                               call.result(0),
                               call.result(1),
                               call.result(2)};
  const auto mask = call.arguments[9].toBoolList();
  fits = fits && is_vector(t.mean, channels) && is_vector(t.inverse_std, channels) &&
         fits_mask(t.grad_x, mask[0], are_images(t.grad_x) && t.grad_x.sizes() == x.sizes()) &&
         fits_mask(t.grad_weight, mask[1], is_vector(t.grad_weight, channels)) &&
         fits_mask(t.grad_bias, mask[2], is_vector(t.grad_bias, channels)) &&
         share_no_memory({t.grad_x, t.grad_weight, t.grad_bias}, {grad, x, t.weight, t.mean, t.inverse_std});
  return fits ? t : BatchNormGradTensors();
}

}  // namespace

void find_bitexact_batch_norms(const std::vector<OpCall>& calls, BitexactKernels& result) {
  const auto is_either = [](const OpCall& call) { return is_norm(call) || is_norm_backward(call); };
  if (std::none_of(calls.begin(), calls.end(), is_either)) return;  // nor is a trial needed
  const BatchNormKernels kernels = fast_batch_norm_kernels();
  static Trials<int, bool> trials;
  if (!threads_round_alike() || !trials.of(0, result, [&] { return batch_norm_is_bitexact(kernels); })) return;
  for (std::size_t i = 0; i < calls.size(); ++i) {
    if (const BatchNormTensors t = forward_tensors(calls[i]); t.x.defined()) {
      result.of_call[i] = {[t, kernels] { run_batch_norm_forward(kernels, t); }, "bit-exact batch norm"};
    }
    if (const BatchNormGradTensors t = backward_tensors(calls[i]); t.x.defined()) {
      result.of_call[i] = {[t, kernels] { run_batch_norm_backward(kernels, t); }, "bit-exact batch norm"};
    }
  }
}

}  // namespace duet
