#include <algorithm>
#include <cmath>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rsub.h>
#include "base/error.h"
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

// Muon for matrices, AdamW for all else: a model always has biases, norms and other parameters that are no matrices.
// One learning rate and one weight decay serve both. With adjust_lr_fn = "match_rms_adamw" the matrices' steps are as
// large as AdamW's, so that a rate found for AdamW fits both; with "original" give the others a rate of their own
// (lr_mult).
namespace duet {

namespace {

using namespace kernel_math;

constexpr double kAdamEps =
    1e-8;  // torch.optim.AdamW's; `eps` is that of the orthogonalization, as in torch.optim.Muon

bool is_matrix(const at::Tensor& parameter) { return parameter.dim() == 2; }
bool is_no_matrix(const at::Tensor& parameter) { return !is_matrix(parameter); }

// The nearest matrix with orthonormal rows or columns, roughly: a quintic Newton-Schulz iteration in bfloat16 that
// brings every singular value near 1. Needs a spectral norm of at most 1, which dividing by the Frobenius norm ensures;
// rows are made the short side, since the iteration multiplies by rows * rows^T.
at::Tensor orthogonalized(const at::Tensor& matrix, const at::Tensor& eps, const Muon& options) {
  const auto [a, b, c] = options.ns_coefficients;
  const bool tall = matrix.size(0) > matrix.size(1);
  at::Tensor x = matrix.to(at::kBFloat16);
  if (tall) x = x.t();
  x = x / at::maximum(at::linalg_vector_norm(x, 2), eps.to(at::kBFloat16));
  for (int64_t i = 0; i < options.ns_steps; ++i) {
    const at::Tensor gram = at::mm(x, x.t());
    const at::Tensor polynomial = at::addmm(gram, gram, gram, b, c);
    x = at::addmm(x, polynomial, x, a);
  }
  return tall ? x.t() : x;
}

// Makes one learning rate fit matrices of all shapes.
double lr_ratio(const at::Tensor& matrix, const Muon& options) {
  const auto rows = static_cast<double>(matrix.size(0));
  const auto columns = static_cast<double>(matrix.size(1));
  if (options.adjust_lr_fn == "match_rms_adamw") return 0.2 * std::sqrt(std::max(rows, columns));
  return std::sqrt(std::max(1.0, rows / columns));
}

// torch.optim.Muon
void step_matrices(const KernelCall& call, const Muon& options) {
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/false);
  const Tensors& buffers = call.state[0];
  const at::Tensor momentum = number64(call, "momentum");
  lerp_(buffers, gradients, at::rsub(momentum, 1));
  const Tensors weights(buffers.size(), cast_like(momentum, buffers));
  const Tensors steps = options.nesterov ? at::_foreach_lerp(gradients, buffers, weights) : buffers;
  decay_parameters(call);
  const at::Tensor lr = number64(call, "lr");
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const at::Tensor& parameter = call.parameters[i];
    const at::Tensor direction = orthogonalized(steps[i], call.number("eps"), options).to(parameter.scalar_type());
    add_scaled_({parameter}, {direction}, lr * -lr_ratio(parameter, options));
  }
}

// torch.optim.AdamW
void step_others(const KernelCall& call, const Muon& options) {
  decay_parameters(call);
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/false);
  const Tensors denominators = adam_roots(call, gradients, /*slot=*/1);
  at::_foreach_add_(denominators, kAdamEps);
  adam_move(call, call.state[1], denominators);
}

// The parameters of a call keep the same state, so they are all matrices or none is.
void kernel(const KernelCall& call, const OptimizerOptions& options) {
  if (is_matrix(call.parameters.front())) {
    step_matrices(call, options.as<Muon>());
  } else {
    step_others(call, options.as<Muon>());
  }
}

void check(const OptimizerOptions& /*options*/, const NamedTensors& parameters) {
  if (std::any_of(parameters.begin(), parameters.end(), [](const auto& item) { return is_matrix(item.second); }))
    return;
  throw ConfigError(
      "[Muon] found no parameter with two dimensions, expected at least one; all others are stepped by AdamW, so "
      "set type to AdamW");
}

}  // namespace

const OptimizerKind kMuon{.name = "Muon",
                          .slots = always({{.name = "momentum_buffer", .kept = is_matrix},
                                           {.name = "exp_avg", .kept = is_no_matrix},
                                           {.name = "exp_avg_sq", .kept = is_no_matrix}}),
                          .kernel = kernel,
                          .check = check};

}  // namespace duet
