#include <cmath>
#include <limits>
#include <ATen/TensorOperators.h>
#include <ATen/ops/fmax.h>
#include <ATen/ops/fmin.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/sqrt.h>
#include "optim/optimizers/optimizer_kind.h"
#include "optim/optimizers/optimizer_options.h"

namespace duet {

namespace {

using namespace kernel_math;

bool is_factored(const at::Tensor& parameter) { return parameter.dim() > 1; }
bool is_not_factored(const at::Tensor& parameter) { return !is_factored(parameter); }

// Kernels take it from the options.
std::map<std::string, double> adafactor_numbers(const OptimizerOptions& options) {
  std::map<std::string, double> numbers = numbers_in(options);
  numbers.erase("eps1");
  return numbers;
}

double least_deviation(const at::Tensor& parameter, const Adafactor& options) {
  if (options.eps1) return *options.eps1;
  return parameter.scalar_type() == at::kDouble ? std::numeric_limits<double>::epsilon()
                                                : double{std::numeric_limits<float>::epsilon()};
}

at::Tensor norm_of(const at::Tensor& tensor) { return at::linalg_vector_norm(tensor, 2).to(at::kDouble); }

double root_of_count(const at::Tensor& tensor) { return std::sqrt(static_cast<double>(tensor.numel())); }

at::Tensor mean_square(const at::Tensor& gradient, int64_t dim) {
  const auto count = static_cast<double>(gradient.size(dim));
  return at::linalg_vector_norm(gradient, 2, dim, /*keepdim=*/true).square_().div_(count);
}

// Of each element of parameter `i`, whose state takes in the gradient: E[g^2], or what the means over rows and columns
// say of it.
at::Tensor variances(const KernelCall& call, std::size_t i, const at::Tensor& gradient, double least) {
  const at::Tensor weight = at::pow(call.step.to(at::kDouble), number64(call, "beta2_decay"));
  if (is_not_factored(gradient)) {
    lerp_({call.state[2][i]}, {gradient * gradient}, weight);
    return call.state[2][i].clone();
  }
  const at::Tensor& rows = call.state[0][i];
  const at::Tensor& columns = call.state[1][i];
  lerp_({rows}, {mean_square(gradient, -1)}, weight);
  lerp_({columns}, {mean_square(gradient, -2)}, weight);
  return at::matmul(rows, columns).div_(rows.mean(-2, /*keepdim=*/true).clamp_min_(least));
}

// torch.optim.Adafactor. Its max() and min() of Python numbers pass over a NaN, as fmax and fmin do.
void adafactor_kernel(const KernelCall& call, const OptimizerOptions& any) {
  const Adafactor& options = any.as<Adafactor>();
  const Tensors gradients = descent_gradients(call, options.maximize, /*l2_decay=*/false);
  const at::Tensor root = at::sqrt(call.step.to(at::kDouble));
  const at::Tensor rho = at::fmin(number64(call, "lr"), at::reciprocal(root));
  Tensors step_sizes;
  for (const at::Tensor& parameter : call.parameters) {
    step_sizes.push_back(at::fmax(number64(call, "eps2"), norm_of(parameter) / root_of_count(parameter)) * rho);
  }
  decay_parameters(call);
  const at::Tensor one = at::scalar_tensor(1, root.options());
  for (std::size_t i = 0; i < gradients.size(); ++i) {
    const double least = least_deviation(call.parameters[i], options);
    const at::Tensor update = variances(call, i, gradients[i], least).clamp_min_(least * least).rsqrt_();
    update.mul_(gradients[i]);
    const at::Tensor excess = at::fmax(one, norm_of(update) / (number64(call, "d") * root_of_count(update)));
    add_scaled_({call.parameters[i]}, {update}, -step_sizes[i] / excess);
  }
}

}  // namespace

const OptimizerKind kAdafactor{
    .name = "Adafactor",
    .slots = always({{.name = "row_var", .shape = StateSlot::Shape::kRows, .kept = is_factored},
                     {.name = "col_var", .shape = StateSlot::Shape::kColumns, .kept = is_factored},
                     {.name = "variance", .kept = is_not_factored}}),
    .numbers = adafactor_numbers,
    .kernel = adafactor_kernel};

}  // namespace duet
