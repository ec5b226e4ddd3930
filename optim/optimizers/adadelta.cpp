#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_div.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

std::vector<StateSlot> adadelta_slots(const OptimizerOptions& /*options*/) {
  return {{.name = "square_avg"}, {.name = "acc_delta"}};
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

}  // namespace

const OptimizerKind kAdadelta{
    .name = "Adadelta", .slots = adadelta_slots, .numbers = numbers_in, .kernel = adadelta_kernel};

}  // namespace duet
