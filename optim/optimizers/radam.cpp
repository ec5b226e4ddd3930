#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_reciprocal.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/where.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

std::vector<StateSlot> slots(const OptimizerOptions& /*options*/) {
  return {{.name = "exp_avg"}, {.name = "exp_avg_sq"}};
}

// How far the variance of 1 / sqrt(v) can be trusted at this step. In the first few steps it cannot (rho <= 5): they
// are plain momentum steps.
struct Rectification {
  at::Tensor tractable;  // bool, 0-dim
  at::Tensor rect;       // 1 where not tractable
};

Rectification rectification(const at::Tensor& beta2, const at::Tensor& step, const at::Tensor& correction2) {
  const at::Tensor rho_inf = 2 / at::rsub(beta2, 1) - 1;
  const at::Tensor rho = rho_inf - 2 * step * at::pow(beta2, step) / correction2;
  const at::Tensor ratio = (rho - 4) * (rho - 2) * rho_inf / ((rho_inf - 4) * (rho_inf - 2) * rho);
  const at::Tensor tractable = rho > 5;
  return {tractable, at::where(tractable, at::sqrt(ratio), 1.0)};
}

// sqrt(correction2) / (sqrt(v) + eps) where tractable, else 1.
Tensors adaptive_rates(const KernelCall& call, const at::Tensor& correction2, const at::Tensor& tractable) {
  Tensors rates = at::_foreach_sqrt(call.state[1]);
  at::_foreach_add_(rates, cast_like(call.number("eps"), rates));
  at::_foreach_reciprocal_(rates);
  at::_foreach_mul_(rates, cast_like(at::sqrt(correction2), rates));
  for (at::Tensor& rate : rates) rate = at::where(tractable, rate, 1.0);
  return rates;
}

// torch.optim.RAdam
void kernel(const KernelCall& call, const OptimizerOptions& any) {
  const RAdam& options = any.as<RAdam>();
  if (options.decoupled_weight_decay) decay_parameters(call);
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/!options.decoupled_weight_decay);
  const Tensors& averages = call.state[0];
  const at::Tensor beta1 = number64(call, "beta1");
  const at::Tensor beta2 = number64(call, "beta2");
  lerp_(averages, gradients, at::rsub(beta1, 1));
  average_squares_(call.state[1], gradients, beta2);

  const at::Tensor correction2 = bias_correction(beta2, call.step);
  const auto [tractable, rect] = rectification(beta2, call.step.to(at::kDouble), correction2);
  const Tensors steps = at::_foreach_div(averages, cast_like(bias_correction(beta1, call.step), averages));
  at::_foreach_mul_(steps, cast_like(call.number("lr"), steps));
  at::_foreach_mul_(steps, adaptive_rates(call, correction2, tractable));
  at::_foreach_mul_(steps, cast_like(rect, steps));
  at::_foreach_sub_(call.parameters, steps);
}

}  // namespace

const OptimizerKind kRadam{.name = "RAdam", .slots = slots, .numbers = numbers_in, .kernel = kernel};

}  // namespace duet
