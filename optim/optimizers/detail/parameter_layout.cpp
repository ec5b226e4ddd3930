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

at::Tensor laid_out_like(const at::Tensor& parameter, const at::Tensor& gradient) {
  if (gradient.layout() != at::kStrided || gradient.strides() == parameter.strides()) return gradient;
  at::Tensor copy = at::empty_like(parameter, parameter.options().requires_grad(false));
  return copy.copy_(gradient);
}

}  // namespace duet
