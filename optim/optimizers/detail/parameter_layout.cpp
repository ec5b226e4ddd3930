#include "optim/optimizers/detail/parameter_layout.h"
#include <ATen/ops/empty_like.h>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

void check_parameter(const std::string& name, const at::Tensor& parameter) {
  if (!parameter.is_floating_point()) {
    throw ConfigError(c10::str("[Optimizer] parameter '", name, "' is ", parameter.scalar_type(),
                               ", expected a floating-point dtype; freeze it with requires_grad_(false)"));
  }
  if (!parameter.is_non_overlapping_and_dense()) {
    throw ConfigError(c10::str("[Optimizer] parameter '", name, "' has strides ", parameter.strides(), " for sizes ",
                               parameter.sizes(), ", expected dense memory; make it contiguous()"));
  }
}

void check_gradient(const std::string& name, const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.sizes() == parameter.sizes() && gradient.scalar_type() == parameter.scalar_type()) return;
  throw ConfigError(c10::str("[Optimizer] the gradient of '", name, "' is ", gradient.scalar_type(), gradient.sizes(),
                             ", expected ", parameter.scalar_type(), parameter.sizes(),
                             " as the parameter is; give it that shape and dtype where a hook sets it"));
}

namespace {

// Strides of dimensions of size 1 say nothing.
bool lie_alike(const at::Tensor& a, const at::Tensor& b) {
  for (int64_t dim = 0; dim < a.dim(); ++dim) {
    if (a.size(dim) != 1 && a.stride(dim) != b.stride(dim)) return false;
  }
  return true;
}

}  // namespace

void lay_out_gradient(const at::Tensor& parameter) {
  const at::Tensor& gradient = parameter.grad();
  if (!gradient.defined() || gradient.layout() != at::kStrided) return;
  if (gradient.sizes() != parameter.sizes() || lie_alike(gradient, parameter)) return;
  at::Tensor copy = at::empty_like(parameter, gradient.options().requires_grad(false));
  parameter.mutable_grad() = copy.copy_(gradient);
}

}  // namespace duet
