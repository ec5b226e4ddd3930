#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_reciprocal.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

// Optimizers over tensors: RMSprop, NAdam, RAdam, Lion, Adadelta, Adamax, ASGD, Rprop.

namespace duet {

namespace {

using namespace kernel_math;

bool has_momentum(const OptimizerOptions& options) { return options.as<RMSprop>().momentum != 0; }

std::vector<StateSlot> rmsprop_slots(const OptimizerOptions& options) {
  std::vector<StateSlot> slots = {{.name = "square_avg"}};
  if (has_momentum(options)) slots.push_back({.name = "momentum_buffer"});
  if (options.as<RMSprop>().centered) slots.push_back({.name = "grad_avg"});
  return slots;
}

// Without momentum at the start there is no buffer for it, hence no such number to change either.
std::map<std::string, double> rmsprop_numbers(const OptimizerOptions& options) {
  std::map<std::string, double> numbers = numbers_in(options);
  if (!has_momentum(options)) numbers.erase("momentum");
  return numbers;
}

// sqrt(E[g^2]), or the standard deviation sqrt(E[g^2] - E[g]^2) if centered; plus eps.
Tensors denominators(const KernelCall& call, const Tensors& gradients, const OptimizerOptions& options) {
  const Tensors& square_avgs = call.state.front();
  const at::Tensor alpha = number64(call, "alpha");
  average_squares_(square_avgs, gradients, alpha);
  Tensors averages;
  if (options.as<RMSprop>().centered) {
    const Tensors& grad_avgs = call.state.back();
    lerp_(grad_avgs, gradients, at::rsub(alpha, 1));
    averages = at::_foreach_addcmul(square_avgs, grad_avgs, grad_avgs, -1);
    at::_foreach_sqrt_(averages);
  } else {
    averages = at::_foreach_sqrt(square_avgs);
  }
  at::_foreach_add_(averages, cast_like(call.number("eps"), averages));
  return averages;
}

// torch.optim.RMSprop
void rmsprop_kernel(const KernelCall& call, const OptimizerOptions& options) {
  const Tensors gradients = descent_gradients(call, options.as<RMSprop>().maximize, /*l2_decay=*/true);
  const Tensors averages = denominators(call, gradients, options);
  const at::Tensor step_size = -number64(call, "lr");
  if (!has_momentum(options)) {
    add_quotient_(call.parameters, gradients, averages, step_size);
    return;
  }
  const Tensors& buffers = call.state[1];
  at::_foreach_mul_(buffers, cast_like(call.number("momentum"), buffers));
  at::_foreach_addcdiv_(buffers, gradients, averages);
  add_scaled_(call.parameters, buffers, step_size);
}

// The momentum of step `step`: beta1 * (1 - 0.96^(step * momentum_decay) / 2).
at::Tensor momentum_at(const at::Tensor& step, const at::Tensor& beta1, const at::Tensor& momentum_decay) {
  return beta1 * at::rsub(at::pow(0.96, step * momentum_decay) * 0.5, 1);
}

// What the gradient and its average are multiplied by, one number per parameter: products of momenta are state, since a
// parameter may have sat out steps while momentum_decay changed.
struct Factors {
  Tensors gradient, average;
};

Factors step_factors(const KernelCall& call) {
  const at::Tensor lr = number64(call, "lr");
  const at::Tensor step = call.step.to(at::kDouble);
  const at::Tensor beta1 = number64(call, "beta1");
  const at::Tensor decay = number64(call, "momentum_decay");
  const at::Tensor mu = momentum_at(step, beta1, decay);
  const at::Tensor mu_next = momentum_at(step + 1, beta1, decay);
  const Tensors& products = call.state[2];
  at::_foreach_mul_(products, cast_like(mu, products));
  const at::Tensor product = at::stack(products).to(at::kDouble);
  const at::ScalarType dtype = call.parameters.front().scalar_type();
  const at::Tensor of_gradient = -lr * at::rsub(mu, 1) / at::rsub(product, 1);
  const at::Tensor of_average = -lr * mu_next / at::rsub(product * mu_next, 1);
  return {of_gradient.to(dtype).unbind(), of_average.to(dtype).unbind()};
}

// torch.optim.NAdam
void nadam_kernel(const KernelCall& call, const OptimizerOptions& any) {
  const NAdam& options = any.as<NAdam>();
  if (options.decoupled_weight_decay) decay_parameters(call);
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/!options.decoupled_weight_decay);
  const Tensors& averages = call.state[0];
  const Tensors& squares = call.state[1];
  const at::Tensor beta2 = number64(call, "beta2");
  const Factors factors = step_factors(call);

  lerp_(averages, gradients, at::rsub(number64(call, "beta1"), 1));
  average_squares_(squares, gradients, beta2);
  const Tensors denominators = at::_foreach_div(squares, cast_like(bias_correction(beta2, call.step), squares));
  at::_foreach_sqrt_(denominators);
  at::_foreach_add_(denominators, cast_like(call.number("eps"), denominators));

  at::_foreach_addcdiv_(call.parameters, at::_foreach_mul(gradients, factors.gradient), denominators);
  at::_foreach_addcdiv_(call.parameters, at::_foreach_mul(averages, factors.average), denominators);
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
void radam_kernel(const KernelCall& call, const OptimizerOptions& any) {
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

// Algorithm 2 of "Symbolic Discovery of Optimization Algorithms" (Chen et al., 2023): every element moves by lr, in the
// direction of a short average of the gradient; what is kept is a longer one.
void lion_kernel(const KernelCall& call, const OptimizerOptions& options) {
  decay_parameters(call);
  const Tensors gradients = descent_gradients(call, options.as<Lion>().maximize, /*l2_decay=*/false);
  const Tensors& averages = call.state[0];
  const at::Tensor share1 = cast_like(at::rsub(number64(call, "beta1"), 1), averages);
  const Tensors directions = at::_foreach_lerp(averages, gradients, Tensors(averages.size(), share1));
  at::_foreach_sign_(directions);
  add_scaled_(call.parameters, directions, -number64(call, "lr"));
  lerp_(averages, gradients, at::rsub(number64(call, "beta2"), 1));
}

// sqrt(average + eps)
Tensors roots_of(const Tensors& averages, const at::Tensor& eps) {
  Tensors roots = at::_foreach_add(averages, cast_like(eps, averages));
  at::_foreach_sqrt_(roots);
  return roots;
}

// torch.optim.Adadelta
void adadelta_kernel(const KernelCall& call, const OptimizerOptions& options) {
  const Tensors gradients = descent_gradients(call, options.as<Adadelta>().maximize, /*l2_decay=*/true);
  const Tensors& squares = call.state[0];
  const Tensors& squared_steps = call.state[1];
  const at::Tensor rho = number64(call, "rho");
  const at::Tensor& eps = call.number("eps");
  average_squares_(squares, gradients, rho);
  const Tensors steps = roots_of(squared_steps, eps);
  at::_foreach_div_(steps, roots_of(squares, eps));
  at::_foreach_mul_(steps, gradients);
  average_squares_(squared_steps, steps, rho);
  add_scaled_(call.parameters, steps, -number64(call, "lr"));
}

// torch.optim.Adamax
void adamax_kernel(const KernelCall& call, const OptimizerOptions& options) {
  const Tensors gradients = descent_gradients(call, options.as<Adamax>().maximize, /*l2_decay=*/true);
  const Tensors& averages = call.state[0];
  const Tensors& largest = call.state[1];
  const at::Tensor beta1 = number64(call, "beta1");
  lerp_(averages, gradients, at::rsub(beta1, 1));
  const Tensors magnitudes = at::_foreach_abs(gradients);
  at::_foreach_add_(magnitudes, cast_like(call.number("eps"), magnitudes));
  at::_foreach_mul_(largest, cast_like(call.number("beta2"), largest));
  at::_foreach_maximum_(largest, magnitudes);
  add_quotient_(call.parameters, averages, largest, -number64(call, "lr") / bias_correction(beta1, call.step));
}

std::vector<StateSlot> asgd_slots(const OptimizerOptions& options) {
  return {{.name = "eta", .shape = StateSlot::Shape::kScalar, .initial = options.as<ASGD>().lr},
          {.name = "mu", .shape = StateSlot::Shape::kScalar, .initial = 1},
          {.name = "ax"}};
}

// The rates of this step, one per parameter. The one of a parameter's first step is the lr of that step.
at::Tensor rates_now(const KernelCall& call) {
  const at::Tensor kept = at::stack(call.state[0]);
  return at::where(call.step == 1, call.number("lr").to(kept.scalar_type()), kept).to(at::kDouble);
}

// ax += mu * (parameter - ax); the parameter itself as long as mu is 1, since that sum would be rounded.
void average_parameters(const KernelCall& call) {
  const Tensors& averages = call.state[2];
  const Tensors shares = at::stack(call.state[1]).to(averages.front().scalar_type()).unbind();
  const Tensors moved = at::_foreach_sub(call.parameters, averages);
  at::_foreach_mul_(moved, shares);
  at::_foreach_add_(moved, averages);
  for (std::size_t i = 0; i < averages.size(); ++i) {
    averages[i].copy_(at::where(shares[i] == 1, call.parameters[i], moved[i]));
  }
}

// torch.optim.ASGD
void asgd_kernel(const KernelCall& call, const OptimizerOptions& options) {
  const Tensors gradients = descent_gradients(call, options.as<ASGD>().maximize, /*l2_decay=*/true);
  const at::ScalarType dtype = gradients.front().scalar_type();
  const at::Tensor lambd = number64(call, "lambd");
  const at::Tensor rates = rates_now(call);
  at::_foreach_mul_(call.parameters, at::rsub(lambd * rates, 1).to(dtype).unbind());
  at::_foreach_addcmul_(call.parameters, gradients, (-rates).to(dtype).unbind());
  average_parameters(call);

  const at::Tensor lr = number64(call, "lr");
  const at::Tensor step = call.step.to(at::kDouble);
  const at::Tensor next_rate = lr / at::pow(lambd * lr * step + 1, number64(call, "alpha"));
  const at::Tensor next_share = at::reciprocal(at::clamp_min(step - number64(call, "t0"), 1));
  for (const at::Tensor& rate : call.state[0]) rate.copy_(next_rate);
  for (const at::Tensor& share : call.state[1]) share.copy_(next_share);
}

std::vector<StateSlot> rprop_slots(const OptimizerOptions& options) {
  return {{.name = "prev"}, {.name = "step_size", .initial = options.as<Rprop>().lr}};
}

// What each element's step size is multiplied by: more where the gradient has the sign of the step before, less where
// it has the other.
at::Tensor growth(const at::Tensor& gradient, const at::Tensor& previous, const Rprop& options) {
  const auto [shrink, grow] = options.etas;
  at::Tensor factor = at::sign(gradient * previous);
  factor = at::where(factor > 0, grow, factor);
  factor = at::where(factor < 0, shrink, factor);
  return at::where(factor == 0, 1.0, factor);
}

// torch.optim.Rprop. Step sizes begin with the lr of a parameter's first step, which no later step reads.
void rprop_kernel(const KernelCall& call, const OptimizerOptions& any) {
  const Rprop& options = any.as<Rprop>();
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/false);
  const at::Tensor first = call.step == 1;
  const at::Tensor lr = cast_like(call.number("lr"), gradients);
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const at::Tensor& previous = call.state[0][i];
    const at::Tensor& step_size = call.state[1][i];
    const at::Tensor factor = growth(gradients[i], previous, options);
    step_size.copy_(at::where(first, lr, step_size));
    step_size.mul_(factor).clamp_(options.step_sizes[0], options.step_sizes[1]);
    // Where the sign changed a minimum was passed: that element sits this step out.
    const at::Tensor gradient = at::where(factor == options.etas[0], 0.0, gradients[i]);
    call.parameters[i].addcmul_(at::sign(gradient), step_size, -1);
    previous.copy_(gradient);
  }
}

}  // namespace

const OptimizerKind kRmsprop{
    .name = "RMSprop", .slots = rmsprop_slots, .numbers = rmsprop_numbers, .kernel = rmsprop_kernel};
const OptimizerKind kNadam{
    .name = "NAdam",
    .slots =
        always({{"exp_avg"}, {"exp_avg_sq"}, {.name = "mu_product", .shape = StateSlot::Shape::kScalar, .initial = 1}}),
    .kernel = nadam_kernel};
const OptimizerKind kRadam{.name = "RAdam", .slots = always({{"exp_avg"}, {"exp_avg_sq"}}), .kernel = radam_kernel};
const OptimizerKind kLion{.name = "Lion", .slots = always({{"exp_avg"}}), .kernel = lion_kernel};
const OptimizerKind kAdadelta{
    .name = "Adadelta", .slots = always({{"square_avg"}, {"acc_delta"}}), .kernel = adadelta_kernel};
const OptimizerKind kAdamax{.name = "Adamax", .slots = always({{"exp_avg"}, {"exp_inf"}}), .kernel = adamax_kernel};
const OptimizerKind kAsgd{.name = "ASGD", .slots = asgd_slots, .kernel = asgd_kernel};
const OptimizerKind kRprop{.name = "Rprop", .slots = rprop_slots, .kernel = rprop_kernel};

}  // namespace duet
