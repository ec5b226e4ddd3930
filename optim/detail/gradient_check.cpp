#include "optim/detail/gradient_check.h"
#include <algorithm>
#include <cmath>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/norm_except_dim.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include "base/detail/name_pattern.h"
#include "base/error.h"
#include "optim/detail/amp.h"

namespace duet {

namespace {

// As torch.nn.utils.get_total_norm: the norm of the tensors' norms.
at::Tensor total_norm(const std::vector<at::Tensor>& gradients, double p) {
  return at::linalg_vector_norm(at::stack(at::_foreach_norm(gradients, p)), p);
}

at::Tensor one_on(at::Device device) { return at::ones({1}, at::TensorOptions().dtype(at::kFloat).device(device)); }

GradientCheck clip_norm(const std::vector<at::Tensor>& gradients, const ClipNorm& clip, const at::Tensor& loss_scale,
                        bool check_finite) {
  GradientCheck verdict;
  verdict.norm = total_norm(gradients, clip.norm_type);
  if (loss_scale.defined()) verdict.norm = verdict.norm / loss_scale.reshape({});
  // The kernel divides by this: 1 / min(1, max_norm / (norm + 1e-6)), torch.nn.utils.clip_grad_norm_'s factor.
  const at::Tensor factor = ((verdict.norm + 1e-6) * (1 / clip.max_norm)).clamp_min(1.0).to(at::kFloat);
  verdict.grad_scale = loss_scale.defined() ? loss_scale * factor : factor;
  if (check_finite) verdict.found_inf = at::isfinite(verdict.norm).logical_not().to(at::kFloat).reshape({1});
  return verdict;
}

// Unscales in place; 1 if a gradient is not finite.
at::Tensor unscale(const std::vector<at::Tensor>& gradients, const at::Tensor& loss_scale) {
  return find_non_finite(gradients,
                         loss_scale.defined() ? at::reciprocal(loss_scale) : one_on(gradients.front().device()));
}

// Any other power of gradients that are finite, and scaled at that, soon overflows: it tells nothing of them.
GradientCheck clip_other_norm(const std::vector<at::Tensor>& gradients, const ClipNorm& clip,
                              const at::Tensor& loss_scale) {
  const at::Tensor found_inf = unscale(gradients, loss_scale);
  GradientCheck verdict = clip_norm(gradients, clip, {}, /*check_finite=*/false);
  verdict.found_inf = found_inf;
  return verdict;
}

// `clip` changes the unscaled gradients in place.
template <class Clip>
GradientCheck clip_in_place(const std::vector<at::Tensor>& gradients, const Clip& clip, const at::Tensor& loss_scale,
                            bool check_finite) {
  GradientCheck verdict;
  if (check_finite || loss_scale.defined()) verdict.found_inf = unscale(gradients, loss_scale);
  clip(gradients);
  return verdict;
}

void clamp(const std::vector<at::Tensor>& gradients, double limit) {
  at::_foreach_clamp_max_(gradients, limit);
  at::_foreach_clamp_min_(gradients, -limit);
}

}  // namespace

GradientCheck check_gradients(const std::vector<at::Tensor>& gradients, const std::optional<ClipGrad>& clip,
                              const at::Tensor& loss_scale, bool check_finite) {
  if (const auto* own = clip ? std::get_if<ClipWith>(&*clip) : nullptr) {
    return clip_in_place(gradients, own->function, loss_scale, check_finite);
  }
  if (const auto* by_value = clip ? std::get_if<ClipValue>(&*clip) : nullptr) {
    const auto limit = [&](const auto& all) { clamp(all, by_value->clip_value); };
    return clip_in_place(gradients, limit, loss_scale, check_finite);
  }
  if (const auto* norm = clip ? std::get_if<ClipNorm>(&*clip) : nullptr) {
    const bool other = norm->norm_type > 2 && std::isfinite(norm->norm_type) && (check_finite || loss_scale.defined());
    return other ? clip_other_norm(gradients, *norm, loss_scale)
                 : clip_norm(gradients, *norm, loss_scale, check_finite);
  }
  GradientCheck verdict;
  verdict.grad_scale = loss_scale;
  if (check_finite) verdict.found_inf = find_non_finite(gradients, one_on(gradients.front().device()));
  return verdict;
}

at::Tensor norm_of_gradients(const std::vector<at::Tensor>& gradients, const at::Tensor& loss_scale) {
  const at::Tensor norm = total_norm(gradients, 2);
  return loss_scale.defined() ? norm / loss_scale.reshape({}) : norm;
}

ClipWith adaptive_clipping(const ClipAdaptive& clip, const NamedTensors& parameters) {
  NamedTensors clipped = parameters;
  for (const std::string& pattern : clip.exclude) {
    const auto fits = [&pattern](const auto& parameter) { return fits_pattern(pattern, parameter.first); };
    require<ConfigError>(std::ranges::any_of(parameters, fits),
                         "[ClipAdaptive] exclude has '" + pattern + "', which fits no trained parameter; correct it");
    std::erase_if(clipped, fits);
  }
  // As timm's unitwise_norm.
  const auto norm = [](const at::Tensor& values) { return at::norm_except_dim(values, 2, values.dim() > 1 ? 0 : -1); };
  return {[clip, clipped, norm](const std::vector<at::Tensor>&) {
    for (const auto& [name, weight] : clipped) {
      if (!weight.grad().defined()) continue;
      const at::Tensor most = norm(weight.detach()).clamp_min(clip.eps) * clip.clip_factor;
      const at::Tensor own = norm(weight.grad());
      weight.grad().mul_(at::where(own < most, 1.0, most / own.clamp_min(1e-6)));
    }
  }};
}

}  // namespace duet
