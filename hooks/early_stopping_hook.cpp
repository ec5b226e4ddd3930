#include "hooks/early_stopping_hook.h"
#include <cmath>
#include <utility>
#include <c10/util/StringUtil.h>
#include "base/error.h"
#include "base/log.h"
#include "hooks/detail/shared.h"
#include "metrics/metric.h"

namespace duet {

const OptionFields& EarlyStoppingHookOptions::fields() {
  using O = EarlyStoppingHookOptions;
  return described<O>("EarlyStoppingHook", [](const auto& add) {
    add("monitor", &O::monitor, "metric that is watched").called("the name of a metric").needed();
    add("rule", &O::rule, "what is better; by default the metric's name says it")
        .called("greater, less")
        .one_of({"", "greater", "less"});
    add("min_delta", &O::min_delta, "least improvement that counts")
        .in(at_least(0))
        .expects("a finite number >= 0, whichever is better");
    add("patience", &O::patience, "validations without improvement that end training").in(at_least(1));
    add("strict", &O::strict, "a validation without the metric is an error");
    add("check_finite", &O::check_finite, "NaN or infinity ends training");
    add("stopping_threshold", &O::stopping_threshold, "a better value ends training").in(Range().or_infinity());
    add("divergence_threshold", &O::divergence_threshold, "a worse value ends training").in(Range().or_infinity());
    add.rule([](const O& o) {
      require<ConfigError>(!o.monitor.empty(),
                           "[EarlyStoppingHook] found no monitor, expected the name of a metric; set monitor");
      less_is_better("EarlyStoppingHook", o.monitor, o.rule);
    });
  });
}

EarlyStoppingHook::EarlyStoppingHook(EarlyStoppingHookOptions options) : options_(std::move(options)) {
  check_options(options_);
  less_ = less_is_better("EarlyStoppingHook", options_.monitor, options_.rule);
}

void EarlyStoppingHook::before_train(TrainContext& context) {
  context.warn_without_validation("[EarlyStoppingHook] monitor '" + options_.monitor + "'");
  if (waited_ < options_.patience) return;
  context.control.request_stop(c10::str("early stopping: this run has waited for ", waited_,
                                        " validations; raise patience (", options_.patience, ") to go on"));
}

void EarlyStoppingHook::after_val_epoch(TrainContext& context) {
  if (context.control.outcome != RunOutcome::kRunning) return;
  const std::optional<double> value = monitored(context);
  if (!value) return;
  const std::string reason = judge(*value);
  if (reason.empty()) return;
  const bool has_diverged = options_.check_finite && !std::isfinite(*value);
  has_diverged ? context.control.stop_diverged("early stopping: " + reason)
               : context.control.request_stop("early stopping: " + reason);
}

std::optional<double> EarlyStoppingHook::monitored(const TrainContext& context) {
  const auto found = context.evaluation.metrics.find(options_.monitor);
  if (found != context.evaluation.metrics.end()) return found->second;
  const std::string problem = not_found("EarlyStoppingHook", "metric", options_.monitor, context.evaluation.metrics);
  if (options_.strict) throw ConfigError(problem + "; correct monitor, or add the metric");
  if (!std::exchange(warned_, true)) log_warning(problem + "; nothing will end this run early until it is there");
  return std::nullopt;
}

std::string EarlyStoppingHook::judge(double value) {
  const std::string now = c10::str(options_.monitor, " ", value);
  if (options_.check_finite && !std::isfinite(value)) return now + " is not finite";
  const bool improved = improves(value);
  if (improved) best_ = value;
  waited_ = improved ? 0 : waited_ + 1;
  const auto& good = options_.stopping_threshold;
  const auto& hopeless = options_.divergence_threshold;
  if (good && better(value, *good)) {
    return c10::str(now, " is ", less_ ? "below" : "above", " the stopping_threshold ", *good);
  }
  if (hopeless && better(*hopeless, value)) {
    return c10::str(now, " is ", less_ ? "above" : "below", " the divergence_threshold ", *hopeless);
  }
  if (waited_ < options_.patience) return {};
  return c10::str(now, " is validation ", waited_, " without improvement",
                  best_ ? c10::str(", the best was ", *best_) : "");
}

// A value that is better by exactly min_delta improves.
bool EarlyStoppingHook::improves(double value) const {
  if (!std::isfinite(value)) return false;
  if (!best_) return true;
  const double wanted = less_ ? *best_ - options_.min_delta : *best_ + options_.min_delta;
  return better(value, *best_) && !better(wanted, value);
}

StateDict EarlyStoppingHook::state_dict() const {
  StateDict state;
  state.set("monitor", StateValue(options_.monitor));
  state.set("waited", StateValue(waited_));
  if (best_) state.set("best", StateValue(*best_));
  return state;
}

void EarlyStoppingHook::load_state_dict(const StateDict& state) {
  const int64_t waited = state.integer("waited");
  const std::optional<double> best = state.has("best") ? std::optional(state.number("best")) : std::nullopt;
  const bool same = state.text("monitor") == options_.monitor;
  if (!same) log_warning("[EarlyStoppingHook] the checkpoint watched another metric: patience begins anew");
  waited_ = same ? waited : 0;
  best_ = same ? best : std::nullopt;
}

}  // namespace duet
