#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/_foreach_sign.h>
#include <ATen/ops/rsub.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

std::vector<StateSlot> slots(const OptimizerOptions& /*options*/) { return {{.name = "exp_avg"}}; }

// Algorithm 2 of "Symbolic Discovery of Optimization Algorithms" (Chen et al., 2023): every element moves by lr, in the
// direction of a short average of the gradient; what is kept is a longer one.
void kernel(const KernelCall& call, const OptimizerOptions& options) {
  decay_parameters(call);
  const Tensors gradients = descent_gradients(call, options.as<Lion>().maximize, /*l2_decay=*/false);
  const Tensors& averages = call.state[0];
  const at::Tensor share1 = cast_like(at::rsub(number64(call, "beta1"), 1), averages);
  const Tensors directions = at::_foreach_lerp(averages, gradients, Tensors(averages.size(), share1));
  at::_foreach_sign_(directions);
  add_scaled_(call.parameters, directions, -number64(call, "lr"));
  lerp_(averages, gradients, at::rsub(number64(call, "beta2"), 1));
}

}  // namespace

const OptimizerKind kLion{.name = "Lion", .slots = slots, .numbers = numbers_in, .kernel = kernel};

}  // namespace duet
