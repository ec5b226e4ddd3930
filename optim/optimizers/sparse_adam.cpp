#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_sparse_coo_tensor_unsafe.h>
#include <ATen/ops/rsub.h>
#include <ATen/ops/sqrt.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

// Rows that a sparse gradient names, and no others, are stepped. torch.optim refuses dense gradients; a model has other
// parameters than its Embedding, and here they are stepped by Adam.
namespace duet {

namespace {

using namespace kernel_math;

// Moves `average` by its share 1 - beta of the way to `values` in the rows of `gradient`; returns what these rows hold
// then.
at::Tensor average_rows_(const at::Tensor& average, const at::Tensor& gradient, const at::Tensor& values,
                         const at::Tensor& beta) {
  const at::Tensor old = average.sparse_mask(gradient)._values();
  const at::Tensor change = (values - old).mul_(cast_like(at::rsub(beta, 1), {average}));
  average.add_(at::_sparse_coo_tensor_unsafe(gradient._indices(), change, gradient.sizes()));
  return change + old;
}

// torch.optim.SparseAdam
void step_rows(const KernelCall& call, std::size_t i, bool maximize) {
  // Only one sum per row gives the square that counts.
  const at::Tensor gradient = (maximize ? -call.gradients[i] : call.gradients[i]).coalesce();
  const at::Tensor values = gradient._values();
  if (values.numel() == 0) return;
  const at::Tensor beta1 = number64(call, "beta1");
  const at::Tensor beta2 = number64(call, "beta2");
  const at::Tensor& parameter = call.parameters[i];
  const at::Tensor averages = average_rows_(call.state[0][i], gradient, values, beta1);
  const at::Tensor denominators = average_rows_(call.state[1][i], gradient, values * values, beta2).sqrt_();
  denominators.add_(cast_like(call.number("eps"), {parameter}));
  const at::Tensor rate = number64(call, "lr") * at::sqrt(bias_correction(beta2, call.step));
  const at::Tensor step_size = -(rate / bias_correction(beta1, call.step));
  const at::Tensor steps = averages.div_(denominators) * cast_like(step_size, {parameter});
  parameter.add_(at::_sparse_coo_tensor_unsafe(gradient._indices(), steps, gradient.sizes()));
}

// The part of the call whose gradients are dense.
KernelCall dense_part(const KernelCall& call) {
  KernelCall dense = call;
  dense.parameters.clear();
  dense.gradients.clear();
  for (Tensors& slot : dense.state) slot.clear();
  for (std::size_t i = 0; i < call.parameters.size(); ++i) {
    if (call.gradients[i].is_sparse()) continue;
    dense.parameters.push_back(call.parameters[i]);
    dense.gradients.push_back(call.gradients[i]);
    for (std::size_t slot = 0; slot < call.state.size(); ++slot) dense.state[slot].push_back(call.state[slot][i]);
  }
  return dense;
}

void sparse_adam_kernel(const KernelCall& call, const OptimizerOptions& options) {
  const bool maximize = options.as<SparseAdam>().maximize;
  for (std::size_t i = 0; i < call.parameters.size(); ++i) {
    if (call.gradients[i].is_sparse()) step_rows(call, i, maximize);
  }
  const KernelCall dense = dense_part(call);
  if (dense.parameters.empty()) return;
  const Tensors roots = adam_roots(dense, descent_gradients(dense, maximize, /*l2_decay=*/false), /*slot=*/0);
  at::_foreach_add_(roots, cast_like(call.number("eps"), roots));
  adam_move(dense, dense.state[0], roots);
}

}  // namespace

const OptimizerKind kSparseAdam{.name = "SparseAdam",
                                .slots = always({{"exp_avg"}, {"exp_avg_sq"}}),
                                .kernel = sparse_adam_kernel,
                                .takes_any_layout = true};

}  // namespace duet
