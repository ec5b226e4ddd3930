#include "optim/detail/gradient_check.h"
#include <algorithm>
#include <cmath>
#include <numeric>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_foreach_clamp_max.h>
#include <ATen/ops/_foreach_clamp_min.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include "base/detail/name_pattern.h"
#include "optim/amp.h"

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

// As timm's unitwise_norm, with dimensions of 1 in the place of those that the norm is taken over.
at::Tensor norm_of_units(const at::Tensor& values) {
  if (values.dim() <= 1) return at::linalg_vector_norm(values, 2);
  std::vector<int64_t> within(static_cast<std::size_t>(values.dim()) - 1);
  std::iota(within.begin(), within.end(), 1);
  return at::linalg_vector_norm(values, 2, within, /*keepdim=*/true);
}

void clip_adaptively(const StepGradients& gradients, const ClipAdaptive& clip) {
  for (std::size_t i = 0; i < gradients.values.size(); ++i) {
    const auto& [name, weight] = gradients.parameters[i];
    if (std::ranges::any_of(clip.exclude, [&name](const auto& pattern) { return fits_pattern(pattern, name); }))
      continue;
    const at::Tensor most = norm_of_units(weight.detach()).clamp_min(clip.eps) * clip.clip_factor;
    const at::Tensor norm = norm_of_units(gradients.values[i]);
    const at::Tensor factor = at::where(norm < most, 1.0, most / norm.clamp_min(1e-6));
    at::Tensor(gradients.values[i]).mul_(factor);
  }
}

GradientCheck check_and_clip(const StepGradients& gradients, const GradientRules& rules, const at::Tensor& loss_scale) {
  const auto in_place = [&](const auto& clip) {
    return clip_in_place(gradients.values, clip, loss_scale, rules.checks_finite);
  };
  const auto* clip = rules.clip ? &*rules.clip : nullptr;
  if (const auto* own = std::get_if<ClipWith>(clip)) return in_place(own->function);
  if (const auto* by_value = std::get_if<ClipValue>(clip)) {
    return in_place([&](const auto& all) { clamp(all, by_value->clip_value); });
  }
  if (const auto* adaptive = std::get_if<ClipAdaptive>(clip)) {
    return in_place([&](const auto&) { clip_adaptively(gradients, *adaptive); });
  }
  if (const auto* norm = std::get_if<ClipNorm>(clip)) {
    const bool other =
        norm->norm_type > 2 && std::isfinite(norm->norm_type) && (rules.checks_finite || loss_scale.defined());
    return other ? clip_other_norm(gradients.values, *norm, loss_scale)
                 : clip_norm(gradients.values, *norm, loss_scale, rules.checks_finite);
  }
  GradientCheck verdict;
  verdict.grad_scale = loss_scale;
  if (rules.checks_finite)
    verdict.found_inf = find_non_finite(gradients.values, one_on(gradients.values.front().device()));
  return verdict;
}

}  // namespace

GradientCheck check_gradients(const StepGradients& gradients, const GradientRules& rules,
                              const at::Tensor& loss_scale) {
  at::Tensor norm;  // before the gradients change
  if (rules.logs_norm && !(rules.clip && std::holds_alternative<ClipNorm>(*rules.clip))) {
    norm = total_norm(gradients.values, 2);
    if (loss_scale.defined()) norm = norm / loss_scale.reshape({});
  }
  GradientCheck verdict = check_and_clip(gradients, rules, loss_scale);
  if (norm.defined()) verdict.norm = norm;
  return verdict;
}

}  // namespace duet
