#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/stack.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

std::vector<StateSlot> slots(const OptimizerOptions& /*options*/) {
  return {{.name = "exp_avg"},
          {.name = "exp_avg_sq"},
          {.name = "mu_product", .shape = StateSlot::Shape::kScalar, .initial = 1}};
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
void kernel(const KernelCall& call, const OptimizerOptions& any) {
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

}  // namespace

const OptimizerKind kNadam{.name = "NAdam", .slots = slots, .numbers = numbers_in, .kernel = kernel};

}  // namespace duet
