#include "hooks/histogram_hook.h"
#include <algorithm>
#include <cmath>
#include <utility>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/aminmax.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/view_as_real.h>
#include "base/detail/name_pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "core/task.h"

namespace duet {

namespace {

at::Tensor finite_values(const at::Tensor& tensor) {
  at::Tensor values = tensor.detach();
  if (values.is_sparse()) values = values.coalesce().values();
  if (values.is_complex()) values = at::view_as_real(values.resolve_conj());
  values = values.reshape({-1}).to(at::kDouble);
  return values.masked_select(at::isfinite(values));
}

}  // namespace

std::optional<Histogram> histogram_of(const at::Tensor& tensor, int64_t bins) {
  const at::Tensor values = finite_values(tensor);
  if (values.numel() == 0) return std::nullopt;
  const auto [smallest, largest] = at::aminmax(values);
  double low = smallest.item<double>(), high = largest.item<double>();
  if (low == high) {
    const double half = std::max(0.5, std::abs(low) * 1e-6);
    low -= half, high += half;
  }
  if (!std::isfinite(high - low)) return std::nullopt;
  const double width = (high - low) / static_cast<double>(bins);
  const at::Tensor bin = ((values - low) / width).to(at::kLong).clamp(0, bins - 1);
  const at::Tensor counts = at::bincount(bin, {}, bins).to(at::kCPU);
  Histogram histogram;
  histogram.counts.assign(counts.const_data_ptr<int64_t>(), counts.const_data_ptr<int64_t>() + bins);
  for (int64_t edge = 0; edge < bins; ++edge) histogram.edges.push_back(low + static_cast<double>(edge) * width);
  histogram.edges.push_back(high);
  histogram.sum = values.sum().item<double>();
  histogram.sum_of_squares = values.square().sum().item<double>();
  return histogram;
}

const OptionFields& HistogramHookOptions::fields() {
  using O = HistogramHookOptions;
  return described<O>("HistogramHook", [](const auto& add) {
    add("interval", &O::interval, "steps from one to the next; each waits for the device").in(at_least(1));
    add("patterns", &O::patterns, "names of parameters or modules, * stands for any text; empty: all").one_or_list();
    add("weights", &O::weights, "of the parameters after the step");
    add("gradients", &O::gradients, "of the gradients as the optimizer was given them, clipped");
    add("bins", &O::bins, "of a histogram").in(between(1, 1000));
    add.rule([](const O& o) {
      require<ConfigError>(o.weights || o.gradients,
                           "[HistogramHook] found weights and gradients off, expected one of them on; set one, or "
                           "remove this hook");
    });
  });
}

HistogramHook::HistogramHook(HistogramHookOptions options) : options_(std::move(options)) { check_options(options_); }

void HistogramHook::before_train(TrainContext& context) {
  std::vector<std::string> names;
  for (const auto& [name, parameter] : context.task.named_parameters()) names.push_back(name);
  for (const std::string& pattern : options_.patterns) {
    const auto fits = [&pattern](const std::string& name) { return fits_pattern(pattern, name); };
    if (std::ranges::any_of(names, fits)) continue;
    throw ConfigError("[HistogramHook] found the pattern '" + pattern + "', which fits no parameter; " +
                      known_and_nearest(pattern, names));
  }
}

void HistogramHook::after_train_iter(TrainContext& context) {
  if (context.progress.step % options_.interval != 0 || !context.is_main || !context.log.wants_histograms()) return;
  const at::NoGradGuard no_grad;
  NamedHistograms made;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (auto histogram = histogram_of(tensor, options_.bins)) made.emplace_back(name, std::move(*histogram));
  };
  for (const auto& [name, parameter] : *context.step.parameters) {
    const auto fits = [&name](const std::string& pattern) { return fits_pattern(pattern, name); };
    if (!options_.patterns.empty() && std::ranges::none_of(options_.patterns, fits)) continue;
    if (options_.weights) add("weights/" + name, parameter);
    if (options_.gradients && parameter.grad().defined()) add("gradients/" + name, parameter.grad());
  }
  if (!made.empty()) context.log.histograms(made);
}

}  // namespace duet
