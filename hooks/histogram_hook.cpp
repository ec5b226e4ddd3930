#include "hooks/histogram_hook.h"
#include <algorithm>
#include <utility>
#include <ATen/core/grad_mode.h>
#include "base/detail/name_pattern.h"
#include "base/detail/text.h"
#include "base/error.h"
#include "core/task.h"
#include "hooks/detail/histogram.h"
#include "hooks/detail/shared.h"

namespace duet {

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
    if (std::any_of(names.begin(), names.end(), fits)) continue;
    throw ConfigError("[HistogramHook] found the pattern '" + pattern + "', which fits no parameter; " +
                      known_and_nearest(pattern, names));
  }
}

bool HistogramHook::is_chosen(const std::string& parameter) const {
  return options_.patterns.empty() ||
         std::any_of(options_.patterns.begin(), options_.patterns.end(),
                     [&parameter](const std::string& pattern) { return fits_pattern(pattern, parameter); });
}

void HistogramHook::after_train_iter(TrainContext& context) {
  if (context.progress.step % options_.interval != 0 || !context.is_main || !context.log.wants_histograms()) return;
  const at::NoGradGuard no_grad;
  NamedHistograms made;
  const auto add = [&](const std::string& name, const at::Tensor& tensor) {
    if (auto histogram = histogram_of(tensor, options_.bins)) made.emplace_back(name, std::move(*histogram));
  };
  for (const auto& [name, parameter] : *context.step.parameters) {
    if (!is_chosen(name)) continue;
    if (options_.weights) add("weights/" + name, parameter);
    if (options_.gradients && parameter.grad().defined()) add("gradients/" + name, parameter.grad());
  }
  if (!made.empty()) context.log.histograms(made);
}

}  // namespace duet
