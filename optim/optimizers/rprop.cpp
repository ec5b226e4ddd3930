#include <ATen/TensorOperators.h>
#include <ATen/ops/addcmul.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/where.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

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

const OptimizerKind kRprop{.name = "Rprop", .slots = rprop_slots, .kernel = rprop_kernel};

}  // namespace duet
