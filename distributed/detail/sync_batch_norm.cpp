#include "distributed/detail/sync_batch_norm.h"
#include <array>
#include <memory>
#include <tuple>
#include <utility>
#include <vector>
#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/var_mean.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <c10/util/StringUtil.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>
#include "base/error.h"
#include "distributed/detail/collective_ops.h"

namespace duet {

namespace {

using at::Tensor;
using MaybeTensor = std::optional<Tensor>;
using torch::autograd::variable_list;

// Above autograd, and of a project (torchdistx) that has ended; LibTorch has no kernel for it.
constexpr c10::DispatchKey kKey = c10::DispatchKey::DeferredInit;
// LibTorch hands what is of this kind on to autograd's threads. No constant of the newest versions.
c10::DebugInfoKind kind_of_info() { return c10::DebugInfoKind::TEST_INFO; }

struct RanksInfo : c10::DebugInfoBase {
  explicit RanksInfo(const Communicator& communicator) : ranks(communicator) {}
  const Communicator& ranks;
};

// As it is written: the dimension of channels, among `dims` others that are 1.
Tensor over_channels(const Tensor& values, int64_t dims) {
  std::vector<int64_t> shape(static_cast<std::size_t>(dims), 1);
  shape[1] = values.numel();
  return values.view(shape);
}

std::vector<int64_t> all_but_channels(const Tensor& input) {
  std::vector<int64_t> dims = {0};
  for (int64_t dim = 2; dim < input.dim(); ++dim) dims.push_back(dim);
  return dims;
}

Tensor in_full(const Tensor& values) {
  return values.to(values.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

struct Statistics {
  Tensor mean, var;  // [C]; var: biased
  Tensor count;      // 0-dim: values of a channel
};

// Each rank's mean, variance and count stand in a row of one table, which all sum: the other rows are zeros. They come
// together as Chan, Golub and LeVeque's (1979).
Statistics over_ranks(const Tensor& values, const Communicator& ranks) {
  const int64_t channels = values.size(1);
  const auto [var, mean] = at::var_mean(values, all_but_channels(values), /*correction=*/at::Scalar(0));
  const Tensor count = at::full({1}, values.numel() / channels, values.options());
  Tensor table = at::zeros({ranks.world_size(), 2 * channels + 1}, values.options());
  table.select(0, ranks.rank()).copy_(at::cat({mean, var, count}));
  start_sum_(table, ranks);
  finish_(table, ranks);
  // A rank without a value has no mean.
  table = at::where(table.narrow(1, 2 * channels, 1) > 0, table, at::zeros({}, values.options()));
  const Tensor counts = table.narrow(1, 2 * channels, 1), means = table.narrow(1, 0, channels);
  const Tensor total = counts.sum(), share = counts / total;
  const Tensor all_mean = (share * means).sum(0);
  const Tensor squares = table.narrow(1, channels, channels) + (means - all_mean).square();
  return {all_mean, (share * squares).sum(0), total};
}

// What it is given beside input, weight and bias.
struct Call {
  MaybeTensor running_mean, running_var;
  double momentum, eps;
};

struct Normalize : torch::autograd::Function<Normalize> {
  // Input, weight, bias and a Call.
  template <class... Arguments>
  static Tensor forward(torch::autograd::AutogradContext* context, const Arguments&... arguments) {
    const auto& [input, weight, bias, call] = std::tie(arguments...);
    return run(*context, input, {weight, bias}, call);
  }

  static Tensor run(torch::autograd::AutogradContext& context, const Tensor& input,
                    const std::array<MaybeTensor, 2>& affine, const Call& call) {
    const auto& [weight, bias] = affine;
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto* info = static_cast<RanksInfo*>(c10::ThreadLocalDebugInfo::get(kind_of_info()));
    const Tensor values = in_full(input);
    const Statistics all = over_ranks(values, info->ranks);
    const auto move = [&](Tensor running, const Tensor& to) {
      running.mul_(1 - call.momentum).add_(to, call.momentum);
    };
    if (call.running_mean && call.running_mean->defined()) move(*call.running_mean, all.mean);
    if (call.running_var && call.running_var->defined())
      move(*call.running_var, all.var * (all.count / (all.count - 1).clamp_min(1)));
    const Tensor inverse = at::rsqrt(all.var + call.eps);
    const Tensor scale = weight && weight->defined() ? inverse * *weight : inverse;
    const Tensor product = all.mean * scale;
    const Tensor shift = bias && bias->defined() ? *bias - product : -product;
    context.saved_data["ranks"] = info->ranks.id();
    context.saved_data["has_weight"] = weight && weight->defined();
    context.saved_data["has_bias"] = bias && bias->defined();
    context.save_for_backward({input, all.mean, inverse, scale, all.count});
    return at::addcmul(over_channels(shift, input.dim()), values, over_channels(scale, input.dim()))
        .to(input.scalar_type());
  }

  // The gradients of weight and bias stay this rank's, as those of all parameters, which are summed later.
  static variable_list backward(torch::autograd::AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Tensor &input = saved[0], &inverse = saved[2], &scale = saved[3];
    const int64_t dims = input.dim();
    const Tensor gradient = in_full(gradients[0]), centred = in_full(input) - over_channels(saved[1], dims);
    const std::vector<int64_t> others = all_but_channels(input);
    const Tensor own = at::cat({gradient.sum(others), (gradient * centred).sum(others)});
    const int64_t channels = inverse.numel();
    variable_list result(6);
    if (context->saved_data["has_weight"].toBool()) result[1] = own.narrow(0, channels, channels) * inverse;
    if (context->saved_data["has_bias"].toBool()) result[2] = own.narrow(0, 0, channels);
    if (!context->needs_input_grad(0)) return result;
    Communicator& ranks = Communicator::find(context->saved_data["ranks"].toInt());
    Tensor all = own.clone();
    start_sum_(all, ranks);
    finish_(all, ranks);
    all = all / saved[4];
    const Tensor of_centred = all.narrow(0, channels, channels) * inverse.square();
    const Tensor moved = gradient - over_channels(all.narrow(0, 0, channels), dims);
    result[0] = (at::addcmul(moved, centred, over_channels(of_centred, dims), -1) * over_channels(scale, dims))
                    .to(input.scalar_type());
    return result;
  }
};

// Called with the arguments of op on the stack. aten::instance_norm, of each sample alone, calls aten::batch_norm
// below.
void on_norm(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const c10::impl::ExcludeDispatchKeyGuard below(kKey);
  const std::string& name = op.schema().name();
  const auto training_at = op.schema().argumentIndexWithName("training");  // of those for training alone: none
  const std::size_t begin = stack->size() - op.schema().arguments().size();
  const auto argument = [&](std::size_t i) -> const c10::IValue& { return (*stack)[begin + i]; };
  const bool evaluates = training_at && !argument(static_cast<std::size_t>(*training_at)).toBool();
  if (evaluates || name == "aten::instance_norm") return op.callBoxed(stack);
  if (name != "aten::batch_norm") {
    throw ConfigError(c10::str(
        "[SyncBatchNorm] the model calls ", name, ", expected aten::batch_norm, which all ranks ",
        "can compute together; export the model without decompositions, or train it with ", "sync_batchnorm: false"));
  }
  const auto tensor = [&](std::size_t i) { return argument(i).toOptional<Tensor>(); };
  const Call call{tensor(3), tensor(4), argument(6).toDouble(), argument(7).toDouble()};
  Tensor result = Normalize::apply(argument(0).toTensor(), tensor(1), tensor(2), call);
  torch::jit::drop(*stack, op.schema().arguments().size());
  stack->emplace_back(std::move(result));
}

// At first use, as OpTap's.
void register_kernels() {
  static const bool registered = [] {
    static torch::Library others(torch::Library::IMPL, "_", kKey, __FILE__, __LINE__);
    static torch::Library library(torch::Library::IMPL, "aten", kKey, __FILE__, __LINE__);
    others.fallback(torch::CppFunction::makeFallthrough());
    for (const char* name :
         {"batch_norm", "instance_norm", "native_batch_norm", "_native_batch_norm_legit",
          "_native_batch_norm_legit.no_stats", "_native_batch_norm_legit_functional", "_batch_norm_with_update",
          "_batch_norm_with_update_functional", "_batch_norm_impl_index", "cudnn_batch_norm"}) {
      library.impl(name, torch::CppFunction::makeFromBoxedFunction<&on_norm>());
    }
    return true;
  }();
  static_cast<void>(registered);
}

}  // namespace

SyncBatchNorm::SyncBatchNorm(const Communicator& ranks) {
  if (ranks.is_single()) return;
  register_kernels();
  ranks_.emplace(kind_of_info(), std::make_shared<RanksInfo>(ranks));
  included_.emplace(kKey);
}

}  // namespace duet
