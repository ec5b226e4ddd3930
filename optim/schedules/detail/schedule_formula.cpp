#include "optim/schedules/detail/schedule_formula.h"
#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <c10/util/StringUtil.h>
#include "base/error.h"

namespace duet {

namespace {

using Options = ScheduleOptions;
using Step = ScheduleStep;

double ratio(int64_t part, int64_t whole) { return static_cast<double>(part) / static_cast<double>(whole); }

// 1 at the beginning of half a period, 0 at its end.
double half_cosine(double share) { return (1 + std::cos(std::numbers::pi * share)) / 2; }

double lowest(const Options& o, const Step& at) { return o.eta_min_ratio ? at.initial * *o.eta_min_ratio : o.eta_min; }

double decayed(double value, double gamma, int64_t times) {
  return value * std::pow(gamma, static_cast<double>(times));
}

double constant(const Options& o, const Step& at) {
  return at.s < at.length - 1 ? at.taken_over * o.factor : at.taken_over;
}

double linear(const Options& o, const Step& at) {
  const double share = at.length > 1 ? ratio(at.s, at.length - 1) : 1.0;
  // Both ends exact, which start + (end - start) * share is not.
  return at.taken_over * (o.start_factor * (1 - share) + o.end_factor * share);
}

double polynomial(const Options& o, const Step& at) {
  const double share = at.length > 1 ? 1 - ratio(at.s, at.length - 1) : 1.0;
  const double low = lowest(o, at);
  return low + (at.taken_over - low) * std::pow(share, o.power);
}

double step(const Options& o, const Step& at) { return decayed(at.taken_over, o.gamma, at.s / o.step_size); }

double multi_step(const Options& o, const Step& at) {
  const auto& marks = o.milestones;
  return decayed(at.taken_over, o.gamma, std::upper_bound(marks.begin(), marks.end(), at.s) - marks.begin());
}

double exponential(const Options& o, const Step& at) { return decayed(at.taken_over, o.gamma, at.s); }

double cosine(const Options& o, const Step& at) {
  const int64_t half_period = o.T_max > 0 ? o.T_max : at.length;
  // mmengine swings back to the initial value, whatever it came from.
  const double high = at.s <= half_period ? at.taken_over : at.initial;
  const double low = lowest(o, at);
  return low + (high - low) * half_cosine(ratio(at.s, half_period));
}

double cosine_restart(const Options& o, const Step& at) {
  std::size_t period = 0;
  int64_t s = at.s;
  while (period + 1 < o.periods.size() && s >= o.periods[period]) s -= o.periods[period++];
  s = std::min(s, o.periods[period] - 1);
  const double high = at.initial * (o.restart_weights.empty() ? 1.0 : o.restart_weights[period]);
  const double low = lowest(o, at);
  return low + (high - low) * half_cosine(ratio(s, o.periods[period]));
}

double between(const std::string& strategy, double from, double to, double share) {
  return strategy == "cos" ? to + (from - to) * half_cosine(share) : from + (to - from) * share;
}

// The levels at which a cycle begins, turns and ends.
std::vector<double> cycle_levels(const Options& o, double initial) {
  const OneCycleOptions& cycle = o.one_cycle;
  const double peak = cycle.eta_max > 0 ? cycle.eta_max : initial;
  double begin = peak / cycle.div_factor, turn = peak, end = begin / cycle.final_div_factor;
  if (o.param_name == "momentum") {
    begin = end = cycle.max_momentum;
    turn = cycle.base_momentum;
  }
  return cycle.three_phase ? std::vector<double>{begin, turn, begin, end} : std::vector<double>{begin, turn, end};
}

double one_cycle(const Options& o, const Step& at) {
  const OneCycleOptions& cycle = o.one_cycle;
  const int64_t total = cycle.total_steps > 0 ? cycle.total_steps : at.length;
  const double s = static_cast<double>(std::min(at.s, total - 1));
  // torch's borders: a phase ends one step before its share of the cycle, the second one two steps before.
  const double rise = cycle.pct_start * static_cast<double>(total);
  std::vector<double> ends = {rise - 1};
  if (cycle.three_phase) ends.push_back(2 * rise - 2);
  ends.push_back(static_cast<double>(total - 1));

  std::size_t phase = 0;
  while (phase + 1 < ends.size() && s > ends[phase]) ++phase;
  const double from = phase > 0 ? ends[phase - 1] : 0.0;
  const double share = ends[phase] > from ? (s - from) / (ends[phase] - from) : 1.0;
  const std::vector<double> levels = cycle_levels(o, at.initial);
  return between(cycle.anneal_strategy, levels[phase], levels[phase + 1], share);
}

double wsd(const Options& o, const Step& at) {
  const WsdLengths lengths = wsd_lengths(o.wsd, at.length);
  // Counted from 1, so that the first step trains and the last one reaches the lowest value.
  if (at.s < lengths.warmup) return at.taken_over * ratio(at.s + 1, lengths.warmup);
  const int64_t decaying = at.s + 1 - (at.length - lengths.decay);
  if (decaying <= 0) return at.taken_over;
  const double progress = ratio(decaying, lengths.decay);
  const double share = o.wsd.decay_type == "linear" ? 1 - progress
                       : o.wsd.decay_type == "sqrt" ? 1 - std::sqrt(progress)
                                                    : half_cosine(progress);
  const double low = lowest(o, at);
  return low + (at.taken_over - low) * share;
}

double unchanged(const Options&, const Step& at) { return at.taken_over; }

constexpr std::array kFormulas = {
    ScheduleFormula{"Constant", false, false, constant},
    ScheduleFormula{"Linear", false, false, linear},
    ScheduleFormula{"Polynomial", true, false, polynomial},
    ScheduleFormula{"Step", false, false, step},
    ScheduleFormula{"MultiStep", false, false, multi_step},
    ScheduleFormula{"Exponential", false, false, exponential},
    ScheduleFormula{"Cosine", true, false, cosine},
    ScheduleFormula{"CosineRestart", true, false, cosine_restart},
    ScheduleFormula{"OneCycle", true, false, one_cycle},
    ScheduleFormula{"WSD", true, false, wsd},
    ScheduleFormula{"ReduceOnPlateau", false, true, unchanged},
};

}  // namespace

const ScheduleFormula& schedule_formula(const ScheduleOptions& options) {
  static constexpr ScheduleFormula kOwn{"", true, false,
                                        [](const Options& o, const Step& at) { return o.formula(at); }};
  if (options.formula) return kOwn;
  const std::string& type = options.type;
  const auto found = std::find_if(kFormulas.begin(), kFormulas.end(), [&](const auto& f) { return type == f.type; });
  if (found != kFormulas.end()) return *found;
  throw ConfigError("[Schedule] found type '" + type + "', expected one of " + c10::Join(", ", schedule_types()) +
                    "; correct it in param_scheduler");
}

std::vector<std::string> schedule_types() {
  std::vector<std::string> types;
  for (const ScheduleFormula& formula : kFormulas) types.emplace_back(formula.type);
  return types;
}

WsdLengths wsd_lengths(const WsdOptions& options, int64_t length) {
  const auto steps = [&](int64_t steps, double share) {
    return steps > 0 ? steps : static_cast<int64_t>(std::llround(static_cast<double>(length) * share));
  };
  return {steps(options.warmup_steps, options.warmup_ratio), steps(options.decay_steps, options.decay_ratio)};
}

}  // namespace duet
