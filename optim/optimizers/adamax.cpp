#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_abs.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_maximum.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/rsub.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

std::vector<StateSlot> adamax_slots(const OptimizerOptions& /*options*/) {
  return {{.name = "exp_avg"}, {.name = "exp_inf"}};
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

}  // namespace

const OptimizerKind kAdamax{.name = "Adamax", .slots = adamax_slots, .numbers = numbers_in, .kernel = adamax_kernel};

}  // namespace duet
