#include "optim/optimizers/detail/over_tensors.h"
#include <concepts>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_addcmul.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/_foreach_sqrt.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/where.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet::over_tensors {

namespace {

using namespace kernel_math;

// What SGD moves along; `gradients` may be changed. The first step takes the gradient for the buffer, undamped: which
// one that is only the device knows, since a step may have been skipped. While momentum is 0 the buffer rests.
Tensors with_momentum(const KernelCall& call, Tensors gradients, bool nesterov) {
  const Tensors& buffers = call.state[0];
  const at::Tensor momentum = number64(call, "momentum");
  const at::Tensor rests = momentum == 0;
  const at::Tensor share = at::where(call.step <= 1, 1.0, at::rsub(number64(call, "dampening"), 1));
  at::_foreach_mul_(buffers, cast_like(at::where(rests, 1.0, momentum), buffers));
  add_scaled_(buffers, gradients, at::where(rests, 0.0, share));
  if (nesterov) {
    add_scaled_(gradients, buffers, momentum);
    return gradients;
  }
  for (std::size_t i = 0; i < buffers.size(); ++i) gradients[i] = at::where(rests, gradients[i], buffers[i]);
  return gradients;
}

template <class T>
void step_adam(const KernelCall& call, const T& options) {
  constexpr bool kDecoupled = std::same_as<T, AdamW>;
  if (kDecoupled) decay_parameters(call);
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/!kDecoupled);
  const Tensors roots = adam_roots(call, gradients, /*slot=*/0, options.amsgrad);
  at::_foreach_add_(roots, cast_like(call.number("eps"), roots));
  adam_move(call, call.state[0], roots);
}

}  // namespace

void sgd(const KernelCall& call, const OptimizerOptions& any) {
  const SGD& options = any.as<SGD>();
  Tensors directions = descent_gradients(call, options.maximize, /*l2_decay=*/true);
  if (!call.state.empty()) directions = with_momentum(call, std::move(directions), options.nesterov);
  add_scaled_(call.parameters, directions, -number64(call, "lr"));
}

void adam(const KernelCall& call, const OptimizerOptions& options) { step_adam(call, options.as<Adam>()); }

void adamw(const KernelCall& call, const OptimizerOptions& options) { step_adam(call, options.as<AdamW>()); }

void adagrad(const KernelCall& call, const OptimizerOptions& options) {
  const Tensors gradients = descent_gradients(call, options.as<Adagrad>().maximize, /*l2_decay=*/true);
  const Tensors& sums = call.state[0];
  at::_foreach_addcmul_(sums, gradients, gradients);
  const Tensors roots = at::_foreach_sqrt(sums);
  at::_foreach_add_(roots, cast_like(call.number("eps"), roots));
  const at::Tensor decay = (call.step.to(at::kDouble) - 1) * number64(call, "lr_decay") + 1;
  add_quotient_(call.parameters, gradients, roots, -number64(call, "lr") / decay);
}

}  // namespace duet::over_tensors
