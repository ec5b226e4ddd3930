#include "distributed/detail/sync_batch_norm.h"
#include <memory>
#include <utility>
#include <vector>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include "base/error.h"
#include "distributed/detail/collective_ops.h"

namespace duet {

using at::Tensor;

namespace {

using torch::autograd::variable_list;

// Above autograd, and of a project (torchdistx) that has ended; LibTorch has no kernel for it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;
// LibTorch hands what is of this kind on to autograd's threads. No constant of the newest versions.
c10::DebugInfoKind kind_of_info() { return c10::DebugInfoKind::TEST_INFO; }

struct RanksInfo : c10::DebugInfoBase {
  explicit RanksInfo(const Communicator& communicator) : ranks(communicator) {}
  const Communicator& ranks;
};

Tensor summed(Tensor own, const Communicator& ranks) {
  start_sum_(own, ranks);
  finish_(own, ranks);
  return own;
}

struct Statistics {
  Tensor mean, var;  // [C]; var: biased
  Tensor count;      // 0-dim: values of a channel
};

// `affine`: weights and biases, [2, C].
Tensor normalized(const Tensor& input, const Tensor& affine, const Statistics& by) {
  if (input.numel() == 0) return input.clone();  // which ATen divides by
  return std::get<0>(at::native_batch_norm(input, affine[0], affine[1], by.mean, by.var, /*training=*/false, 0, 0));
}

// Differentiable, as are the statistics: they are the input's.
struct Normalize : torch::autograd::Function<Normalize> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& input, const Tensor& affine,
                        const std::pair<Statistics, int64_t>& given) {
    const auto& [all, ranks] = given;
    context->save_for_backward({input, affine, all.mean, all.var, all.count});
    context->saved_data["ranks"] = ranks;
    return normalized(input, affine, all);
  }

  // The gradients of weight and bias stay this rank's, as those of all parameters, which are summed later.
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor& affine = saved[1];
    const at::ScalarType type = affine.scalar_type();
    const Tensor input = saved[0].to(type);  // 16 bits are rounded to once, at the end
    const Statistics all{saved[2], saved[3], saved[4]};
    Tensor of_input = input, own = at::zeros_like(affine);
    if (input.numel() > 0) {
      const auto [values, weight, bias] = at::native_batch_norm_backward(
          gradients[0].to(type), input, affine[0], all.mean, all.var, {}, {}, /*train=*/false, 0, {true, true, true});
      of_input = values;
      own = at::stack({weight, bias});
    }
    if (!context->needs_input_grad(0)) return {Tensor(), own, Tensor()};
    const Tensor mean = summed(own.clone(), Communicator::find(context->saved_data["ranks"].toInt())) / all.count;
    const Tensor of_statistics = normalized(input, mean * affine[0] * all.var.rsqrt(), all);
    return {(of_input - of_statistics).to(saved[0].scalar_type()), own, Tensor()};
  }
};

// aten::batch_norm's arguments: input, weight, bias, running_mean, running_var, training, momentum, eps, cudnn_enabled.
Tensor batch_norm(c10::ArrayRef<c10::IValue> arguments, const Communicator& ranks) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const Tensor input = arguments[0].toTensor();
  const auto given = [&](std::size_t i) { return arguments[i].isTensor() ? arguments[i].toTensor() : Tensor(); };
  const at::ScalarType type = input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Statistics all;
  {
    const at::NoGradGuard no_grad;
    const Tensor moments = summed(moments_of(input), ranks);
    const int64_t channels = input.size(1);
    const Tensor count = moments[2 * channels], mean = moments.narrow(0, 0, channels) / count;
    const Tensor var = (moments.narrow(0, channels, channels) / count - mean.square()).clamp_min(0);
    const auto move = [momentum = arguments[6].toDouble()](Tensor running, const Tensor& to) {
      if (running.defined()) running.mul_(1 - momentum).add_(to, momentum);
    };
    move(given(3), mean);
    move(given(4), var * (count / (count - 1).clamp_min(1)));
    all = {mean.to(type), (var + arguments[7].toDouble()).to(type), count.to(type)};
  }
  const Tensor weight = given(1).defined() ? given(1).to(type) : at::ones_like(all.mean);
  const Tensor bias = given(2).defined() ? given(2).to(type) : at::zeros_like(all.mean);
  return Normalize::apply(input, at::stack({weight, bias}), std::pair(all, ranks.id()));
}

// aten::instance_norm, of each sample alone, calls aten::batch_norm below.
void on_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  const std::string& name = op.schema().name();
  const auto arguments = torch::jit::last(*stack, op.schema().arguments().size());
  const auto training = op.schema().argumentIndexWithName("training");  // of those for training alone: none
  const bool evaluates = training && !arguments[static_cast<std::size_t>(*training)].toBool();
  if (evaluates || name == "aten::instance_norm") return op.callBoxed(stack);
  if (name != "aten::batch_norm") {
    throw ConfigError("[SyncBatchNorm] the model calls " + name + ", expected aten::batch_norm, which all ranks can " +
                      "compute together; export the model without decompositions, or train it without sync_batchnorm");
  }
  const auto* info = static_cast<RanksInfo*>(c10::ThreadLocalDebugInfo::get(kind_of_info()));
  Tensor result = batch_norm(arguments, info->ranks);
  torch::jit::drop(*stack, arguments.size());
  stack->emplace_back(std::move(result));
}

}  // namespace

Tensor moments_of(const Tensor& input) {
  const int64_t channels = input.size(1);
  if (input.numel() == 0) return at::zeros({2 * channels + 1}, input.options().dtype(at::kDouble));
  std::vector<int64_t> others = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) others.push_back(dim);
  const Tensor full = input.scalar_type() == at::kDouble ? input : input.to(at::kFloat);
  const auto [var, narrow_mean] = at::var_mean(full, others, /*correction=*/at::Scalar(0));
  const Tensor mean = narrow_mean.to(at::kDouble);
  return at::cat({mean, var.to(at::kDouble) + mean.square(), at::ones({1}, mean.options())}) *
         (input.numel() / channels);
}

SyncBatchNorm::SyncBatchNorm(const Communicator& ranks) {
  if (ranks.is_single()) return;
  // At first use, as OpTap's.
  static torch::Library others(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
  static torch::Library norms(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
  [[maybe_unused]] static const bool registered = [] {
    others.fallback(torch::CppFunction::makeFallthrough());
    for (const char* name :
         {"batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit",
          "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_functional", "_batch_norm_with_update",
          "_batch_norm_with_update_functional", "_batch_norm_impl_index", "cudnn_batch_norm"}) {
      norms.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_norm>());
    }
    return true;
  }();
  ranks_.emplace(kind_of_info(), std::make_shared<RanksInfo>(ranks));
  included_.emplace(kKey);
}

}  // namespace duet
