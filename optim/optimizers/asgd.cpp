#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

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

}  // namespace

const OptimizerKind kAsgd{.name = "ASGD", .slots = asgd_slots, .kernel = asgd_kernel};

}  // namespace duet
