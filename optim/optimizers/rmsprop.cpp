#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcdiv.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/rsub.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

bool has_momentum(const OptimizerOptions& options) { return options.as<RMSprop>().momentum != 0; }

std::vector<StateSlot> slots(const OptimizerOptions& options) {
  std::vector<StateSlot> slots = {{.name = "square_avg"}};
  if (has_momentum(options)) slots.push_back({.name = "momentum_buffer"});
  if (options.as<RMSprop>().centered) slots.push_back({.name = "grad_avg"});
  return slots;
}

// Without momentum at the start there is no buffer for it, hence no such number to change either.
std::map<std::string, double> numbers(const OptimizerOptions& options) {
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
void kernel(const KernelCall& call, const OptimizerOptions& options) {
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

}  // namespace

const OptimizerKind kRmsprop{.name = "RMSprop", .slots = slots, .numbers = numbers, .kernel = kernel};

}  // namespace duet
